"""The engine's options that a search can vary, and the values of `--vary`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError
from plimsoll.prediction.serving.parts import CARD

if TYPE_CHECKING:
    from collections.abc import Sequence

LENGTH, SEQUENCES = "--max-model-len", "--max-num-seqs"
TOKENS = "--max-num-batched-tokens"
SHARE = "--gpu-memory-utilization"
PARALLEL = "--tensor-parallel-size"
PARALLELS = (1, 2, 4, 8)
"""The values of `PARALLEL` to try. A value of N needs N cards."""
PERCENT = 100
"""The number of steps between 0 and 1 in the search for the best value of `SHARE`."""


@dataclass(frozen=True)
class Varied:
    """The parsed values of `--vary`.

    Attributes:
        searched: The option for which plimsoll searches the largest or the least value that serves;
            None if there is no such option.
        choices: The combinations of values for the other options. plimsoll searches once with each
            combination.
    """

    searched: str | None
    choices: tuple[dict[str, str], ...]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Varied:
        """Parses the texts of `--vary`.

        `--max-model-len` asks for a search of the option's best value. `--quantization=none,fp8`
        asks for a search with each of these values.

        Raises:
            InputError: If a text is not an option, or several options have no values.
        """
        searched: list[str] = []
        choices: dict[str, list[str]] = {}
        for text in texts:
            name, has_values, values = text.partition("=")
            name = name.replace("_", "-")
            if not name.startswith("--") or (has_values and not all(values.split(","))):
                raise InputError(
                    "--vary is an option of vllm serve, as in --vary=--max-model-len or "
                    f"--vary=--kv-cache-dtype=auto,fp8, not {text!r}"
                )
            if has_values:
                choices.setdefault(name, []).extend(values.split(","))
            else:
                searched.append(name)
        if len({*searched}) > 1:
            raise InputError(
                f"one option is searched at a time, not {' and '.join(dict.fromkeys(searched))}; "
                "give the other one values, as in --vary=--max-num-seqs=64,256"
            )
        if searched and searched[0] in choices:
            raise InputError(f"{searched[0]} is searched, or has values; not both")
        sets = product(*(dict.fromkeys(values) for values in choices.values()))
        found = tuple(dict(zip(choices, each, strict=True)) for each in sets)
        return cls(searched[0] if searched else None, found)


def is_least(vary: str | None) -> bool:
    """Returns whether the search is for the least value: the smallest card, or the fewest cards."""
    return vary in (CARD, PARALLEL)
