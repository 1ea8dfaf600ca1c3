"""Changes that set the script's own options: activation checkpointing, shorter samples."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from plimsoll.prediction.fitting.changes.change import SWITCH, Change

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.prediction.survey import ArgumentUse, Survey

_CHECKPOINTS = re.compile(
    r"--((use|enable)[-_])?((grad(ient)?|act(ivation)?)[-_])?(checkpointing|ckpt(ing)?)"
    r"|--(use[-_])?(grad(ient)?|activation)[-_]checkpoints?"
    r"|--checkpoint[-_](activations|blocks|layers)"
    r"|--(activation[-_])?(recompute|recomputation|remat)([-_](activations|blocks|layers))?"
)
_LENGTH = re.compile(
    r"--(max[-_])?(seq(uence)?[-_])?(len(gth)?)|--block[-_]size|--context[-_]length"
)
_MOST_PARTS = 4
_LEAST_LENGTH = 128


def own_option_changes(survey: Survey, allocated_bytes: int) -> Iterator[Change]:
    """Yields changes that set an option of the script's own.

    The option switches checkpointing on, or cuts samples to 1/2 or 1/4 of their length.
    """
    for use in survey.arguments:
        if use.value is False and (name := _known(use, _CHECKPOINTS)) is not None:
            yield Change(
                "own checkpoints",
                f"turn on the script's own {name}",
                short=name,
                arguments=((name, SWITCH),),
                saves_bytes=allocated_bytes // 2,
                excludes=frozenset({"recomputation"}),
            )
        is_length = isinstance(use.value, int) and not isinstance(use.value, bool)
        if is_length and (name := _known(use, _LENGTH)) is not None:
            yield from _shorter(name, int(use.value or 0), allocated_bytes)


def _shorter(name: str, length: int, allocated_bytes: int) -> Iterator[Change]:
    parts = 2
    while parts <= _MOST_PARTS and length % parts == 0 and length // parts >= _LEAST_LENGTH:
        yield Change(
            "shorter samples",
            f"set {name} to {length // parts}",
            short=f"{name} {length // parts}",
            arguments=((name, str(length // parts)),),
            caveat=f"a sample has 1/{parts} of the {length} tokens",
            saves_bytes=int(allocated_bytes * (1 - 1 / parts)),
            steps=parts,
        )
        parts *= 2


def _known(use: ArgumentUse, pattern: re.Pattern[str]) -> str | None:
    return next((name for name in use.names if pattern.fullmatch(name)), None)
