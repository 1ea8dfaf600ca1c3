"""Runs `vllm serve MODEL ...` as a script: the engine under a load, without a server."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import pairwise
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


def served_title(arguments: Sequence[str]) -> str:
    """Returns the title of a run: the command with its model.

    Args:
        arguments: The arguments after `vllm serve`.
    """
    named = [value for option, value in pairwise(arguments) if option == "--model"]
    first = [each for each in arguments[:1] if not each.startswith("-")]
    return " ".join(["vllm serve", *(named or first)[:1]])
