"""Tests finding the only place that sets the batch size: command line, script, or configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from plimsoll.base.units import GiB
from plimsoll.prediction.fitting.changes.smaller_batch import smaller_batch_changes
from plimsoll.prediction.fitting.script_text import ScriptText
from plimsoll.prediction.survey import ArgumentUse, Survey

if TYPE_CHECKING:
    from plimsoll.prediction.fitting.changes.change import Change


def changes(text: str, **seen: object) -> list[Change]:
    survey = Survey(**{"batches": [64], **seen})  # type: ignore[arg-type]
    return list(smaller_batch_changes(survey, GiB, ScriptText.of(text)))


@pytest.mark.parametrize(
    "text",
    [
        "BATCH_SIZE = 64\n",
        "class Config:\n    batch_size: int = 64\n",
        "def main(steps, batch_size=64):\n    pass\n",
        "def main(*, train_batch=64):\n    pass\n",
        "config = {'lr': 64, 'batch_size': 64}\n",
        "loader = DataLoader(data, batch_size=64)\n",
    ],
)
def test_a_number_of_the_script_with_batch_in_its_name_is_changed(text: str) -> None:
    half, quarter, eighth = changes(text)
    script = ScriptText.of(text)
    assert (
        str(half.edit(script)) == text[: text.rindex("64")] + "32" + text[text.rindex("64") + 2 :]
    )
    assert [each.steps for each in (half, quarter, eighth)] == [2, 4, 8]
    assert half.saves_bytes == GiB // 2
    assert not half.keeps_results


@pytest.mark.parametrize(
    "text",
    [
        "WIDTH = 64\n",
        "BATCH_SIZE = 32\n",
        "BATCH_SIZE = 64\nEVAL_BATCH_SIZE = 64\n",
        "batch_size = 64.0\n",
        "is_batch = True\n",
    ],
)
def test_a_number_that_is_another_or_not_the_only_one_is_left_alone(text: str) -> None:
    assert changes(text) == []
    assert changes(text, batches=[1]) == []


def test_an_option_comes_before_numbers_of_the_script() -> None:
    option = ArgumentUse(["-b", "--batch-size"], 64)
    half, *_ = changes("BATCH_SIZE = 64\n", arguments=[option])
    assert half.arguments == (("--batch-size", "32"),)
    assert half.name == "set --batch-size to 32"


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.yaml", "train:\n  # batch_size: 64\n  lr: 64\n  batch_size: 64  # each\n", 4),
        ("a.toml", "[train]\nbatch = 64\nwarm = 64\n", 2),
        ("a.json", '{"train": {"batch_size": 64, "lr": 64}, "eval_batch_size": 128}', 1),
    ],
)
def test_a_configuration_that_was_read_is_named_with_its_key(
    name: str, text: str, line: int, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text)
    half, *_ = changes("", files=[str(path)])
    assert half.name.startswith(("set batch_size to 32 in ", "set batch to 32 in "))
    assert half.name.endswith(f"{name}, line {line}")
    ((where, changed),) = half.files
    assert where == str(path)
    key = (
        "batch = " if name == "a.toml" else 'batch_size": ' if name == "a.json" else "batch_size: "
    )
    place = text.rindex(f"{key}64") + len(key)
    assert changed == f"{text[:place]}32{text[place + 2 :]}"
    (tmp_path / "b.yaml").write_text("batch: 64\n")
    assert changes("", files=[str(path), str(tmp_path / "b.yaml")]) == []
    assert changes("", files=[str(tmp_path / "gone.yaml")]) == []


def test_only_small_files_that_a_trial_holds_back_are_configurations(tmp_path: Path) -> None:
    from plimsoll.prediction.fitting.changes.smaller_batch import _text_of
    from plimsoll.prediction.scratch import is_held_back

    own = tmp_path / "config.json"
    own.write_text('{"batch_size": 64}')
    assert _text_of(own)
    own.write_text(" " * (2 << 20))
    assert not _text_of(own)
    linked = tmp_path / "linked.json"
    linked.symlink_to("/dev/shm/config.json")
    assert not is_held_back(linked)
    assert not is_held_back(Path("/dev/shm/config.json"))
    assert is_held_back(own)
