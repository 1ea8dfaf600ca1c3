"""Tests `plimsoll explain DIR`: the files of a folder, their ranks, and the report."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll import InputError, explain_ranks
from plimsoll.base.units import MiB
from plimsoll.base.workers.done import Done
from plimsoll.explanation.ranks.rank_files import rank_in_name, rank_pattern
from plimsoll.recordings.parquet import write_parquet
from plimsoll.recordings.reading import read_recording
from tests.commands import run_plimsoll
from tests.made_ranks import Rank, history_of, program_of, write_rank
from tests.recordings import EXAMPLES
from tests.waiting import without_beats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

explain_ranks_module = import_module("plimsoll.explanation.ranks.explain_ranks")
RECORDING = EXAMPLES / "gpt2_adamw.pickle.gz"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes recordings of four ranks, one of which leaks, and two files that cannot be read."""
    made = tmp_path_factory.mktemp("job")
    program = program_of(RECORDING)
    for rank in range(4):
        history = history_of(program, Rank(10_000, fault="leak" if rank == 2 else None, seed=5))
        write_rank(made / f"run.rank{rank}.plim", history, rank=rank, world_size=4, seed=rank)
    (made / "run.rank4.plim").write_text("nothing")
    (made / "notes.txt").write_text("rank 5")
    return made


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    done = run_plimsoll("explain", *arguments)
    done.stderr = without_beats(done.stderr)
    return done


def test_the_first_line_is_the_answer_and_bad_files_are_a_line_each(folder: Path) -> None:
    done = run(folder, "--no-advice")
    assert (done.returncode, done.stderr) == (0, "")
    first, *others = done.stdout.splitlines()
    assert first.startswith("Rank 2 of 4 (node0) leaks: gpt2_adamw.py:65 main has kept ")
    (left_out,) = [line for line in others if line.startswith("note: left out")]
    assert "run.rank4.plim: not a readable pickle" in left_out
    assert others[-1] == f"Run: plimsoll explain {folder / 'run.rank2.plim'}"


def test_long_recordings_are_not_explained_by_themselves(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain_ranks_module, "_MOST_EVENTS_EXPLAINED", 5_000)
    monkeypatch.setattr(explain_ranks_module, "run_all", in_this_process)
    found = explain_ranks(folder, advice=False)
    assert [(one.rank, one.kind) for one in found.outliers] == [(2, "leak")]
    assert not found.explanations
    assert [one for one in found.not_read if "is not explained: it has" in one and "5,000" in one]
    assert explain_ranks(folder, advice=False, memory="1GiB").explanations


def test_a_leak_is_the_reason_why_a_rank_ran_out_of_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain_ranks_module, "run_all", in_this_process)
    found = explain_ranks(folder, advice=False)
    (leak,) = found.outliers
    failed = replace(leak, kind="out_of_memory", line="attention.py:9", bytes=MiB, event=7)
    first, why, *_ = str(replace(found, outliers=[failed, leak])).splitlines()
    assert first.endswith(
        "ran out of memory at attention.py:9: 1.00 MiB was asked for, at event 7."
    )
    begin = "Why: gpt2_adamw.py:65 main keeps more after each step than on other ranks, "
    assert why.startswith(begin)
    assert why.endswith(" by now.")


def in_this_process(
    function: Callable[[Any], Any], items: Sequence[Any], **_: object
) -> Iterator[Done[Any]]:
    for index, item in enumerate(items):
        try:
            yield Done(index, function(item), None)
        except InputError as error:
            yield Done(index, None, str(error))


@pytest.mark.long
def test_json_has_ranks_groups_and_outliers(folder: Path) -> None:
    found = json.loads(run(folder, "--no-advice", "--json").stdout)
    assert [one["rank"] for one in found["ranks"]] == [0, 1, 2, 3]
    assert {one["host"] for one in found["ranks"]} == {"node0"}
    (group,) = found["groups"]
    assert group["ranks"] == [0, 1, 2, 3]
    assert group["representative"] in (0, 1, 3)
    (outlier,) = found["outliers"]
    assert (outlier["rank"], outlier["kind"]) == (2, "leak")
    assert outlier["line"] == "gpt2_adamw.py:65 main"
    assert outlier["bytes"] > 0
    assert str(group["representative"]) in found["explanations"]


def test_a_folder_may_mix_all_formats(tmp_path: Path) -> None:
    shutil.copy(RECORDING, tmp_path / "snapshot_rank_0.pickle.gz")
    write_parquet(read_recording(RECORDING), tmp_path / "rank1.parquet")
    inside = tmp_path / "node1"
    inside.mkdir()
    history = history_of(program_of(RECORDING), Rank(10_000))
    write_rank(inside / "run.plim", history, rank=2, world_size=3)
    found = explain_ranks(tmp_path, advice=False, processes=1)
    assert [(one.rank, Path(one.file).name) for one in found.ranks] == [
        (0, "snapshot_rank_0.pickle.gz"), (1, "rank1.parquet"), (2, "run.plim"),
    ]  # fmt: skip
    assert found.world_size == 3
    assert "<table>" in found._repr_html_()


def test_two_recordings_of_a_rank_are_refused(tmp_path: Path) -> None:
    for name in ("a_rank1.pickle.gz", "b_rank1.pickle.gz"):
        shutil.copy(RECORDING, tmp_path / name)
    done = run(tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "a_rank1.pickle.gz and" in line
    assert "are both of rank 1" in line


def test_of_a_restarted_rank_the_latest_recording_is_explained(tmp_path: Path) -> None:
    history = history_of(program_of(RECORDING), Rank(10_000))
    for name in ("run.rank0", "run.rank0-2", "run.rank0-10", "run.rank1"):
        rank = int(name.split("rank")[1].split("-")[0])
        write_rank(tmp_path / f"{name}.plim", history, rank=rank, world_size=2)
    found = explain_ranks(tmp_path, advice=False, processes=1)
    used = [(one.rank, Path(one.file).name) for one in found.ranks]
    assert used == [(0, "run.rank0-10.plim"), (1, "run.rank1.plim")]
    assert found.not_read == [
        f"2 earlier recordings of rank 0, which started again, such as {tmp_path}/run.rank0.plim; "
        "plimsoll explains the latest start of each rank"
    ]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--limit", "1GiB"], "go with one recording"),
        (["--rank-pattern", "("], "is no regular expression"),
        (["--rank-pattern", "rank"], "has to say where the rank is"),
    ],
)
def test_what_cannot_be_asked_of_a_folder_is_a_line(
    folder: Path, arguments: list[str], problem: str
) -> None:
    done = run(folder, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert problem in line


def test_an_empty_folder_says_what_it_looked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no recording in it; recordings end in \.plim"):
        explain_ranks(tmp_path)


@pytest.mark.parametrize(
    ("name", "pattern", "rank"),
    [
        ("run.rank12.plim", None, 12),
        ("node3/memory_snapshot_rank_7.pickle", None, 7),
        ("step100/Rank-5_step_100.pickle.gz", None, 5),
        ("host2_13_.plim", None, 13),
        ("out/3.parquet", None, 3),
        ("snapshot.pickle", None, None),
        ("worker4-gpu2.plim", r"worker(\d+)", 4),
        ("worker4-gpu2.plim", r"(?P<host>worker\d+)-gpu(?P<rank>\d+)", 2),
        ("other.plim", r"worker(\d+)", None),
    ],
)
def test_names_say_ranks(name: str, pattern: str | None, rank: int | None) -> None:
    assert rank_in_name(name, None if pattern is None else rank_pattern(pattern)) == rank
