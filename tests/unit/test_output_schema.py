"""Tests that the published schema describes the output of `--json`.

If any test runs a command with `--json`, tests/output_lines.py compares the command's output with
this schema.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from plimsoll.base.json_text import json_line
from plimsoll.base.telemetry.exit_summaries import ExitSummary
from plimsoll.cli.app import app
from tests.output_lines import check_line, check_output, kinds_of
from tests.output_schema import FILE, make_schema, schema_text

pytest.importorskip("jsonschema")
RECORDING = str(Path(__file__).parents[2] / "examples/recordings/gpt2_adamw_oom.pickle.gz")


def line_of(*arguments: str) -> str:
    """Returns the first line that a command prints."""
    done = CliRunner().invoke(app, list(arguments))
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.stdout.splitlines()[0]


def test_the_file_is_what_the_classes_say() -> None:
    assert FILE.read_text() == schema_text(), "python -m tests.output_schema writes it anew"


def test_every_key_of_a_line_has_a_description() -> None:
    made = make_schema()
    bare = [
        f"{name}.{key}"
        for name, definition in made["$defs"].items()
        for key, value in definition["properties"].items()
        if not value.get("description") and "$ref" not in value
    ]
    assert bare == []


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("gpus", ("gpus", "4090", "--json")),
        ("doctor", ("doctor", "--json")),
        ("replay", ("replay", RECORDING, "--json")),
        ("explain", ("explain", RECORDING, "--json", "--no-advice")),
        ("top", ("top", "--json")),
    ],
)
def test_a_line_is_of_its_command_alone(kind: str, arguments: tuple[str, ...]) -> None:
    assert kinds_of(line_of(*arguments)) == [kind]


def test_pages_exports_and_summaries_are_lines_too(tmp_path: Path) -> None:
    page = line_of("view", RECORDING, "-o", str(tmp_path / "page.html"), "--json")
    assert kinds_of(page) == ["view"]
    perfetto = str(tmp_path / "trace.json")
    export = line_of("view", RECORDING, "--export", "perfetto", "-o", perfetto, "--json")
    assert kinds_of(export) == ["view_export"]
    summary = ExitSummary("elastic", None, 17, 0, 1 << 20, 2 << 20)
    assert kinds_of(json_line(asdict(summary))) == ["run"]


def without(values: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != key}


def test_a_line_that_lacks_a_key_or_has_another_type_is_refused() -> None:
    card = json.loads(line_of("gpus", "4090", "--json"))
    check_line(json.dumps({**card, "new": 1}))
    for wrong in (without(card, "total_bytes"), {**card, "total_bytes": "24 GiB"}):
        with pytest.raises(AssertionError, match="total_bytes"):
            check_line(json.dumps(wrong))
        with pytest.raises(AssertionError, match="total_bytes"):
            check_output(f"text\n{json.dumps(wrong)}\n")
        with pytest.raises(AssertionError, match="total_bytes"):
            json_line(without(wrong, "schema"))
    with pytest.raises(AssertionError, match="schema"):
        check_line(json.dumps({**card, "schema": 1}))


def test_what_another_process_prints_is_checked() -> None:
    program = 'print(\'{"schema": 2, "name": "plimsoll"}\')'
    with pytest.raises(AssertionError, match=r"output\.schema\.json"):
        subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
