"""Tests that a rank's summary is the same however its history is split, and needs little memory."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from plimsoll.explanation.ranks import rank_summary
from plimsoll.explanation.ranks.rank_summary import summarize
from plimsoll.recordings.analysis.block_history import BlockHistory
from plimsoll.recordings.parquet import write_parquet
from plimsoll.recordings.reading import read_recording
from tests.long_recordings import write_long
from tests.made_ranks import Rank, history_of, program_of, write_rank
from tests.recordings import EXAMPLES

if TYPE_CHECKING:
    from pathlib import Path

MiB = 1 << 20
PROGRAM = """
import pathlib, sys
from plimsoll.explanation.ranks.rank_summary import summarize
found = summarize(pathlib.Path(sys.argv[1]))
status = pathlib.Path("/proc/self/status").read_text()
print(int(status.split("VmHWM:")[1].split()[0]) * 1024, found.events, found.steps)
"""


def plain(value: Any) -> Any:
    """Returns a summary as data that can be compared."""
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, np.ndarray):
        return value.dtype, value.tolist()
    return [plain(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("marks", [True, False])
@pytest.mark.parametrize("fault", [None, "leak", "out_of_memory"])
def test_stretches_of_any_length_come_to_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Any, marks: bool
) -> None:
    path = tmp_path / "run.rank3.plim"
    history = history_of(
        program_of(EXAMPLES / "gpt2_adamw.pickle.gz"), Rank(8_000, lengths=0.7, fault=fault)
    )
    write_rank(path, history, rank=3, marks=marks)
    whole = plain(summarize(path))
    assert whole["events"] < 1 << 18
    monkeypatch.setattr(
        rank_summary, "BlockHistory", lambda trace: BlockHistory(trace, events=1_000)
    )
    assert plain(summarize(path)) == whole


def most_resident(path: Path) -> tuple[int, int, int]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)], check=True, capture_output=True, text=True
    )
    most, events, steps = map(int, done.stdout.split())
    return most, events, steps


@pytest.mark.long
def test_memory_does_not_grow_with_the_length(tmp_path: Path) -> None:
    most = []
    for events in (600_000, 2_400_000):
        path = tmp_path / f"{events}.plim"
        write_long(path, events, marks=True)
        resident, found, steps = most_resident(path)
        assert found >= events
        assert steps == -(-events // 4500)
        most.append(resident)
    # If the process held all events in memory, the difference would be four times this limit.
    assert most[1] - most[0] < 45 * MiB


@pytest.mark.long
@pytest.mark.parametrize("ending", ["plim", "parquet"])
def test_memory_does_not_grow_where_steps_are_searched(tmp_path: Path, ending: str) -> None:
    most = []
    for events in (6_000_000, 18_000_000):
        path = tmp_path / f"{events}.plim"
        write_long(path, events, marks=False)
        if ending == "parquet":
            write_parquet(
                read_recording(path, goes_by=True), path := tmp_path / f"{events}.parquet"
            )
        resident, found, steps = most_resident(path)
        assert found >= events
        assert steps == pytest.approx(events / 4500, abs=2)
        most.append(resident)
    assert most[1] - most[0] < 64 * MiB
