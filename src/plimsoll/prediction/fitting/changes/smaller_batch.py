"""A smaller batch, set in an option, a number in the script, or a configuration file."""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.prediction.fitting.changes.change import Change
from plimsoll.prediction.fitting.script_text import CannotChangeError
from plimsoll.prediction.scratch import is_held_back
from plimsoll.recordings.analysis.lines import short_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from plimsoll.prediction.fitting.script_text import ScriptText
    from plimsoll.prediction.survey import Survey

    Place = Callable[[int], Change]
    """A function that takes a smaller batch size and returns the change that sets it."""

_KIND = "smaller batch"
_MOST_PARTS = 8
_MOST_BYTES = 1 << 20
_KEY = re.compile(
    r"""(?<![\w-])(?P<before>["']?(?P<key>[\w-]*batch[\w-]*)["']?[ ]*[:=][ ]*)
    (?P<number>\d+)(?![\w.])""",
    re.IGNORECASE | re.VERBOSE,
)


def smaller_batch_changes(
    survey: Survey, allocated_bytes: int, script: ScriptText
) -> Iterator[Change]:
    """Yields changes to 1/2, 1/4 and 1/8 of the batch, if a single place sets the batch size.

    Args:
        survey: The survey of the unchanged script.
        allocated_bytes: The most that the program allocates.
        script: The script's text.
    """
    for size in dict.fromkeys([*(model.batch for model in survey.models), *survey.batches]):
        place = None if size is None else _place_of(size, survey, script)
        if size is None or place is None:
            continue
        parts = 2
        while size % parts == 0 and parts <= _MOST_PARTS:
            yield replace(
                place(size // parts),
                short=f"batch of {size // parts}",
                order=1,
                caveat=f"a step has 1/{parts} of the batch of {size}",
                saves_bytes=int(allocated_bytes * (1 - 1 / parts)),
                steps=parts,
                excludes=frozenset({"batch"}),
            )
            parts *= 2
        return


def _place_of(size: int, survey: Survey, script: ScriptText) -> Place | None:
    """Returns the only place that sets this batch size; None if there is none, or several.

    An option of the command line comes before all other places, because it overrides them.
    """
    for find in (_options, _numbers, _configurations):
        found = list(find(size, survey, script))
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _options(size: int, survey: Survey, _: ScriptText) -> Iterator[Place]:
    for use in survey.arguments:
        names = [name for name in use.names if "batch" in name.lower()]
        if names and use.value == size and not isinstance(use.value, bool):
            yield partial(_with_option, names[-1])


def _with_option(name: str, less: int) -> Change:
    return Change(_KIND, f"set {name} to {less}", arguments=((name, str(less)),))


def _numbers(size: int, _: Survey, script: ScriptText) -> Iterator[Place]:
    for number, value in enumerate(_named_numbers(script, size)):
        yield partial(_with_number, size, number, value.lineno)


def _with_number(size: int, number: int, line: int, less: int) -> Change:
    def edit(script: ScriptText) -> ScriptText:
        found = list(_named_numbers(script, size))
        if number >= len(found):
            raise CannotChangeError("another change has taken the number of the batch away")
        return script.replace(found[number], str(less))

    return Change(_KIND, f"set the batch in line {line} to {less}", edit=edit)


def _named_numbers(script: ScriptText, size: int) -> Iterator[ast.Constant]:
    """Yields the numbers equal to `size` that the script gives to a name that contains "batch"."""
    for node in ast.walk(script.tree):
        for name, value in _named(node):
            is_number = isinstance(value, ast.Constant) and type(value.value) is int
            if is_number and "batch" in name.lower() and value.value == size:
                yield value


def _named(node: ast.AST) -> Iterator[tuple[str, ast.Constant]]:
    pairs: list[tuple[ast.expr | str | None, ast.expr | None]] = []
    match node:
        case ast.Assign(targets=[target]):
            pairs = [(target, node.value)]
        case ast.AnnAssign():
            pairs = [(node.target, node.value)]
        case ast.Call():
            pairs = [(keyword.arg, keyword.value) for keyword in node.keywords]
        case ast.Dict():
            pairs = [*zip(node.keys, node.values, strict=True)]
        case ast.arguments():
            given = [*node.posonlyargs, *node.args]
            last = given[len(given) - len(node.defaults) :]
            pairs = [(each.arg, value) for each, value in zip(last, node.defaults, strict=True)]
            pairs += [
                (each.arg, value)
                for each, value in zip(node.kwonlyargs, node.kw_defaults, strict=True)
            ]
    for key, value in pairs:
        name = key if isinstance(key, str) else "" if key is None else ast.unparse(key)
        if isinstance(value, ast.Constant):
            yield name, value


def _configurations(size: int, survey: Survey, _: ScriptText) -> Iterator[Place]:
    for path in survey.files:
        text = ""
        with suppress(OSError, UnicodeDecodeError):  # the file was removed, or is not text
            text = _text_of(Path(path))
        for found in _KEY.finditer(text):
            begin = text.rfind("\n", 0, found.start()) + 1
            if int(found["number"]) != size or "#" in text[begin : found.start()]:
                continue
            yield partial(_with_configuration, path, text, found)


def _text_of(path: Path) -> str:
    """Returns a configuration file's text.

    Returns "" if the file is gone or large, or if a simulated run could change the file on disk.
    """
    is_small = path.is_file() and path.stat().st_size <= _MOST_BYTES
    return path.read_text() if is_small and is_held_back(path) else ""


def _with_configuration(path: str, text: str, found: re.Match[str], less: int) -> Change:
    line = text.count("\n", 0, found.start()) + 1
    changed = f"{text[: found.start('number')]}{less}{text[found.end() :]}"
    what = f"set {found['key']} to {less} in {short_path(path)}, line {line}"
    return Change(_KIND, what, files=((path, changed),))
