"""The results of searches over a serving engine's options, as data."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from plimsoll.prediction.not_kept import NotKept
from plimsoll.torch.simulated.serving_use import ServingUse

CARD = "gpu"
"""Stands in place of an option's name if a search looks for the smallest card."""


@dataclass(frozen=True)
class EngineTrial:
    """One run of the engine.

    Attributes:
        gpu: The card.
        gpus: The number of cards.
        settings: The options that the search set, by name; "none" leaves an option out, and "on"
            gives it without a value.
        fits: Whether the engine starts, serves the load and leaves the wanted headroom; None if
            unknown.
        ends: How the run ended, in words.
        serving: How the engine divided the card; None if it failed before that.
        headroom_bytes: The memory of the card that stays free under load; None unless it serves.
        total_bytes: The card's memory; None if the engine failed for another reason than memory.
        error: The engine's error, if it failed for another reason than memory; otherwise None.
        seconds: The duration of the prediction.
        is_kept: Whether plimsoll read the result of this trial from the results file, and did not
            run the engine.
    """

    gpu: str
    gpus: int
    settings: dict[str, str]
    fits: bool | None
    ends: str
    serving: ServingUse | None = None
    headroom_bytes: int | None = None
    total_bytes: int | None = None
    error: str | None = None
    seconds: float = 0.0
    is_kept: bool = False


@dataclass(frozen=True)
class EngineBorder:
    """The result of one search: the best value that serves, and the nearest that does not.

    Attributes:
        vary: The searched option, or "gpu" for the card; None if only `settings` were tried.
        settings: The options that were set throughout the search.
        trial: The trial of the answer; None if the engine never served.
        beyond: The trial of the nearest value with which the engine does not serve; None if there
            is none.
        stopped: Why the search ended early; None if the values of `trial` and `beyond` are
            neighbours, or at most 1 % apart.
        value: The answer: the option's value, or the card; None if the engine never served, or if
            nothing was varied.
        next_value: The value or card of `beyond`.
    """

    vary: str | None
    settings: dict[str, str]
    trial: EngineTrial | None
    beyond: EngineTrial | None = None
    stopped: str | None = None
    value: int | float | str | None = field(init=False)
    next_value: int | float | str | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", _value_in(self.trial, self.vary))
        object.__setattr__(self, "next_value", _value_in(self.beyond, self.vary))


def _value_in(trial: EngineTrial | None, vary: str | None) -> int | float | str | None:
    if trial is None or vary is None:
        return None
    text = trial.gpu if vary == CARD else trial.settings.get(vary)
    if text is None:  # the trial ran the command unchanged
        return None
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return text


@dataclass(frozen=True)
class EngineFitParts:
    """The result of `plimsoll fit` for a serving engine.

    Attributes:
        command: The command, from `vllm serve` on.
        gpu: The card; None if the smallest card was looked for.
        vary: The option that was searched, or "gpu" for the card; None if the user asked for no
            search. plimsoll then tried the values that the user listed, or else changes of the
            command.
        found: The results of the searches, or of the user's choices; the best first. If plimsoll
            tried changes of the command, their results are in the order of the tries.
        tried: All trials, in order; each command once.
        stopped: Why plimsoll ended before it tried everything; None if it tried everything.
        seconds: The duration of the predictions.
        not_kept: The guarantees, such as exact figures, that at least one trial could not give.
    """

    command: list[str]
    gpu: str | None
    vary: str | None
    found: list[EngineBorder]
    tried: list[EngineTrial]
    stopped: str | None = None
    seconds: float = 0.0
    not_kept: list[NotKept] = field(default_factory=list)

    @property
    def best(self) -> EngineBorder | None:
        """The first search that found an answer; None if none did."""
        return next((each for each in self.found if each.trial is not None), None)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON, in base units and with stable keys."""
        return asdict(self)
