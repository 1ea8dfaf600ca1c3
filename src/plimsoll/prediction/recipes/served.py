"""Turns a serving engine's command into a script that runs the engine, without its server.

The script puts the engine under a load.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

_FOLDER = Path(__file__).with_name("engines")


@dataclass(frozen=True)
class Engine:
    """A serving engine, and the commands that start its server.

    Attributes:
        title: The engine's name.
        package: The package that pip installs.
        command: The program that starts the server with the argument `serve`.
        module: The module that starts the server with `python -m`.
        model_options: The options that name the model.
        card_options: The options that determine the number of cards, which is the product of their
            values. Each option is a tuple of its alternative names.
        script: plimsoll's script that runs the engine under a load.
    """

    title: str
    package: str
    command: str
    module: str
    model_options: tuple[str, ...]
    card_options: tuple[tuple[str, ...], ...]
    script: Path


VLLM = Engine(
    "vLLM",
    "vllm",
    "vllm",
    "vllm.entrypoints.openai.api_server",
    ("--model",),
    (("--tensor-parallel-size", "-tp"), ("--pipeline-parallel-size", "-pp")),
    _FOLDER / "vllm_serve.py",
)
SGLANG = Engine(
    "SGLang",
    "sglang",
    "sglang",
    "sglang.launch_server",
    ("--model-path", "--model"),
    (
        ("--tp-size", "--tp", "--tensor-parallel-size"),
        ("--pp-size", "--pp", "--pipeline-parallel-size"),
    ),
    _FOLDER / "sglang_serve.py",
)
ENGINES = (VLLM, SGLANG)


def engine_of(script: str | None, arguments: Sequence[str], *, module: bool) -> Engine | None:
    """Returns the engine whose server a command starts; None for other commands.

    Args:
        script: The command's program, or a module's name.
        arguments: The arguments of that program or module.
        module: Whether `script` is a module's name.
    """
    for engine in ENGINES:
        if module and script == engine.module:
            return engine
        is_program = not module and script is not None and Path(script).name == engine.command
        if is_program and list(arguments[:1]) == ["serve"]:
            return engine
    return None


def engine_of_script(script: str | Path) -> Engine | None:
    """Returns the engine that a script of `ENGINES` runs; None for other scripts."""
    return next((engine for engine in ENGINES if engine.script == Path(script)), None)


_SHORT = {
    "-q": "--quantization",
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
}
"""vLLM's short names of options."""
_SWITCH = re.compile(r"--(enable|disable|no|skip|enforce|trust|async|use|return)-")
"""Matches the beginning of the names of options that take no value."""


def _long_name(word: str) -> str:
    name = word.partition("=")[0]
    return _SHORT.get(name, name.replace("_", "-")) if name.startswith("-") else ""


def given(arguments: Sequence[str], *names: str) -> str | None:
    """Returns the value of an engine's option; None if the option is not given.

    If the option is repeated, returns its last value.

    Args:
        arguments: The arguments of the engine's server.
        names: The names of the option, with hyphens. vLLM takes underscores as well.
    """
    found = None
    for place, each in enumerate(arguments):
        _, has_value, value = each.partition("=")
        if _long_name(each) in names or each in names:
            found = value if has_value else next(iter(arguments[place + 1 : place + 2]), "")
    return found


def without(arguments: Sequence[str], name: str) -> list[str]:
    """Removes every occurrence of the option `name` from an engine's arguments.

    A switch, such as `--enable-...`, takes no value, so the word after it stays. For any other
    option, the value is removed too. If the value is a number, all numbers that directly follow
    it are removed with it.
    """
    names = {name, name.replace("--", "--no-", 1), name.replace("--no-", "--", 1)}
    kept: list[str] = []
    left = list(arguments)
    while left:
        word = left.pop(0)
        if _long_name(word) not in names:
            kept.append(word)
        elif "=" not in word and not _SWITCH.match(name) and left and not left[0].startswith("-"):
            value = left.pop(0)
            while value.isdecimal() and left and left[0].isdecimal():
                left.pop(0)
    return kept


def engine_cards(engine: Engine, arguments: Sequence[str]) -> int:
    """Returns the number of cards that an engine with these arguments needs."""
    texts = [given(arguments, *names) or "1" for names in engine.card_options]
    return prod(int(text) if text.isascii() and text.isdecimal() else 1 for text in texts) or 1


_OWN_OPTIONS = (
    *("--gpu", "--json", "--quiet", "--vary", "--results", "--headroom", "--goal", "--prices"),
)
"""Options of plimsoll that a user may put after the model by mistake.

The engine would take them for its own options.
"""


def check_engine(engine: Engine, arguments: Sequence[str]) -> None:
    """Checks that the engine is installed and that its arguments contain no option of plimsoll.

    Args:
        engine: The engine.
        arguments: The arguments of its server.

    Raises:
        InputError: If the engine is not installed, or its arguments contain an option of plimsoll.
    """
    command = f"{engine.command} serve"
    for each in arguments:
        if each.partition("=")[0] in _OWN_OPTIONS:
            raise InputError(
                f"{each} stands behind `{command}`, and is not {engine.title}'s; put it before: "
                f"plimsoll … {each} {command} …"
            )
    if find_spec(engine.package) is None:
        raise InputError(
            f"`{command}` needs {engine.title} in the environment of plimsoll: pip install "
            f"{engine.package} (its code runs here; no GPU is needed)"
        )


def engine_version(engine: Engine) -> str:
    """Returns the version of the installed engine; empty if the package has no metadata."""
    try:
        return metadata.version(engine.package)
    except metadata.PackageNotFoundError:
        return ""


def served_title(engine: Engine, arguments: Sequence[str]) -> str:
    """Returns the title of an engine's run, such as "vllm serve MODEL".

    Args:
        engine: The engine.
        arguments: The arguments of its server.
    """
    split = [word for each in arguments for word in each.split("=", 1)]
    named = [value for option, value in pairwise(split) if option in engine.model_options]
    first = [each for each in arguments[:1] if not each.startswith("-")]
    return " ".join([f"{engine.command} serve", *(named or first)[:1]])
