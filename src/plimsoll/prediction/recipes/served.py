"""`vllm serve MODEL ...` as a script: the engine alone, under a load, without a server."""

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
    """Return whether a command is `vllm serve`.

    Args:
        script: The command's program.
        arguments: Its arguments.
    """
    return script is not None and Path(script).name == "vllm" and list(arguments[:1]) == ["serve"]


_OWN_OPTIONS = ("--gpu", "--json", "--quiet")
"""Options of plimsoll's that people put behind the model; the engine would misread them."""


def check_engine(arguments: Sequence[str]) -> None:
    """Check that the engine is installed, and gets no options of plimsoll's.

    Args:
        arguments: Those behind `vllm serve`.

    Raises:
        InputError: If it is not, or does.
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
    """Return what a run is called: the command, with its model.

    Args:
        arguments: Those behind `vllm serve`.
    """
    named = [value for option, value in pairwise(arguments) if option == "--model"]
    first = [each for each in arguments[:1] if not each.startswith("-")]
    return " ".join(["vllm serve", *(named or first)[:1]])
