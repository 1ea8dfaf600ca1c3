"""Runs `vllm serve MODEL ...` as a script: the engine under a load, without a server."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

SCRIPT = Path(__file__).with_name("engines") / "serve.py"


def is_serving(script: str | None, arguments: Sequence[str]) -> bool:
    """Returns whether a command is `vllm serve`.

    Args:
        script: The command's program.
        arguments: Its arguments.
    """
    return script is not None and Path(script).name == "vllm" and list(arguments[:1]) == ["serve"]


_CARDS = (
    ("--tensor-parallel-size", "-tp"),
    ("--pipeline-parallel-size", "-pp"),
)
"""Options whose product is the number of cards of an engine, by their names."""


def given(arguments: Sequence[str], *names: str) -> str | None:
    """Returns the last value of an option of `vllm serve`; None if it is not given.

    Args:
        arguments: The arguments after `vllm serve`.
        names: The names of the option, with hyphens. vLLM takes underscores as well.
    """
    found = None
    for place, each in enumerate(arguments):
        name, has_value, value = each.partition("=")
        if name.replace("_", "-") in names:
            found = value if has_value else next(iter(arguments[place + 1 : place + 2]), "")
    return found


def without(arguments: Sequence[str], name: str) -> list[str]:
    """Returns the arguments of `vllm serve` without an option, however often it is given."""
    kept: list[str] = []
    takes_next = False
    for each in arguments:
        option, has_value, _ = each.partition("=")
        is_named = each.startswith("-") and option.replace("_", "-") == name
        is_value = takes_next and not each.startswith("-")
        takes_next = is_named and not has_value
        if not is_named and not is_value:
            kept.append(each)
    return kept


def engine_cards(arguments: Sequence[str]) -> int:
    """Returns the number of cards that one engine needs, by its arguments."""
    texts = [given(arguments, *names) or "1" for names in _CARDS]
    return prod(int(text) if text.isascii() and text.isdecimal() else 1 for text in texts) or 1


_OWN_OPTIONS = ("--gpu", "--json", "--quiet")
"""plimsoll's options that users put after the model, where the engine would misread them."""


def check_engine(arguments: Sequence[str]) -> None:
    """Check that the engine is installed, and gets no options of plimsoll.

    Args:
        arguments: The arguments after `vllm serve`.

    Raises:
        InputError: If it is not installed, or gets one.
    """
    for each in arguments:
        if each.partition("=")[0] in _OWN_OPTIONS:
            raise InputError(
                f"{each} stands behind `vllm serve`, and is not vLLM's; put it before: "
                f"plimsoll predict {each} … vllm serve …"
            )
    if find_spec("vllm") is None:
        raise InputError(
            "`vllm serve` needs vLLM in the environment of plimsoll: pip install vllm "
            "(its code runs here; no GPU is needed)"
        )


def engine_version() -> str:
    """Returns the version of the installed engine; empty if its package does not say it."""
    try:
        return metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return ""


def served_title(arguments: Sequence[str]) -> str:
    """Returns the title of a run: the command with its model.

    Args:
        arguments: The arguments after `vllm serve`.
    """
    named = [value for option, value in pairwise(arguments) if option == "--model"]
    first = [each for each in arguments[:1] if not each.startswith("-")]
    return " ".join(["vllm serve", *(named or first)[:1]])
