"""Validates the output of `--json` against the schema, for every command that a test runs.

Commands in this process print with `json_line`, and every line is checked. The output of another
process is checked if the test captures it with `subprocess.run`.
"""

from __future__ import annotations

import functools
import json
import subprocess
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from plimsoll.base import json_text

if TYPE_CHECKING:
    from collections.abc import Mapping

BEGIN = '{"schema": '
HAS_CHECKER = find_spec("jsonschema") is not None
"""Whether jsonschema is installed. `make test-lowest` runs tests without it."""


@functools.cache
def _checker() -> Any:
    from importlib.resources import files

    from jsonschema import Draft202012Validator

    schema = json.loads((files("plimsoll") / "output.schema.json").read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def check_line(line: str) -> None:
    """Raises AssertionError if a line matches none of the kinds of results in the schema."""
    checker = _checker()
    error = next(checker.iter_errors(json.loads(line)), None)
    if error is None:
        return
    # Report only the errors for one kind: the kind that the line fits best.
    complaints: dict[int, list[Any]] = {}
    for each in error.context:
        complaints.setdefault(each.schema_path[0], []).append(each)
    definitions = checker.schema["$defs"]
    names = [branch["$ref"].rpartition("/")[2] for branch in checker.schema["oneOf"]]
    meant = max(
        complaints,
        key=lambda kind: len(definitions[names[kind]]["required"]) - len(complaints[kind]),
        default=0,
    )
    told = [
        f"{'/'.join(map(str, each.absolute_path))} {each.message}"
        for each in complaints.get(meant, [error])
    ]
    raise AssertionError(
        f"a line of {names[meant]} is not as in output.schema.json: {'; '.join(told)[:2000]}: "
        f"{line[:300]}"
    )


def kinds_of(line: str) -> list[str]:
    """Returns the names of the kinds that a line matches: one, if the schema is right."""
    from jsonschema import Draft202012Validator

    schema, found = _checker().schema, json.loads(line)
    return [
        branch["$ref"].rpartition("/")[2]
        for branch in schema["oneOf"]
        if Draft202012Validator({**branch, "$defs": schema["$defs"]}).is_valid(found)
    ]


def check_output(output: str | bytes | None) -> None:
    """Finds the lines of `--json` in a command's output, and checks each of them."""
    text = output.decode(errors="replace") if isinstance(output, bytes) else output or ""
    for line in text.splitlines():
        if line.startswith(BEGIN) and line.endswith("}"):
            check_line(line)


def watch_lines() -> None:
    """Checks the `--json` output of commands from now on. Call it before plimsoll is used."""
    if not HAS_CHECKER:
        return
    make, run = json_text.json_line, subprocess.run

    @functools.wraps(make)
    def json_line(values: Mapping[str, Any]) -> str:
        line = make(values)
        check_line(line)
        return line

    @functools.wraps(run)
    def run_and_check(*arguments: Any, **named: Any) -> Any:
        done = run(*arguments, **named)
        if "plimsoll" in str(done.args):
            check_output(done.stdout)
        return done

    json_text.json_line = json_line
    subprocess.run = run_and_check
