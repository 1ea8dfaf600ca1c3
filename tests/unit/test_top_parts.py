"""Tests the parts of `plimsoll top`'s screen: graphs, history, tree, actions on processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.base.errors import InputError
from plimsoll.base.telemetry.identity import parent_of
from plimsoll.integrations.top.bars import bar, graph
from plimsoll.integrations.top.details import details
from plimsoll.integrations.top.history import MOST_LOOKS, History
from plimsoll.integrations.top.process_acts import ChosenProcess, environment
from plimsoll.integrations.top.process_tree import process_tree
from plimsoll.integrations.top.text import render
from tests.unit.fake_nvml import FakeNvml, Gpu
from tests.unit.top_machines import GIB, machine

if TYPE_CHECKING:
    from collections.abc import Sequence


@given(parts=st.lists(st.integers(0, 90), min_size=5, max_size=5), width=st.integers(1, 40))
def test_a_larger_part_of_a_bar_is_never_shorter(parts: list[int], width: int) -> None:
    shown = bar(parts, 100, width).plain
    assert len(shown) == width
    letters = [shown.count(sign) for sign in "█▓▒#="]
    by_size = [length for _, length in sorted(zip(parts, letters, strict=True))]
    assert by_size == sorted(by_size)


@given(values=st.lists(st.integers(0, 90)), width=st.integers(1, 40), height=st.integers(1, 5))
def test_a_graph_has_its_size_and_shows_all_that_is_above_zero(
    values: list[int], width: int, height: int
) -> None:
    rows = graph(values, 80, width, height)
    assert [len(row) for row in rows] == [width] * height
    shown = values[-width:]
    assert [letter != " " for letter in rows[-1]] == [False] * (width - len(shown)) + [
        value > 0 for value in shown
    ]


def test_a_graph_fills_from_below() -> None:
    assert graph([0, 40, 60, 80], 80, 5, 2) == ["   ▄█", "  ███"]


def test_a_graph_of_many_looks_shows_the_most_of_each_group() -> None:
    history = History(iter(range(1000)).__next__)
    for used in [*range(1, 160), 80, 1]:
        history.add(machine(FakeNvml(Gpu("GPU-aa", used=min(used, 80) * GIB))))
    row = render(machine(FakeNvml(Gpu("GPU-aa"))), 80, history=history).rows[0]
    span, upper, lower = details(row, 80, history).plain.splitlines()[-3:]
    assert span == "the last 3 min: 1.00 GiB to 80.00 GiB of 80.00 GiB"
    assert (upper[0], upper[-1], lower[-1]) == (" ", "█", "█")
    assert upper.strip().startswith("▁")


def test_history_forgets_what_has_gone_and_the_oldest_looks() -> None:
    history = History()
    for used in range(MOST_LOOKS + 2):
        history.add(machine(FakeNvml(Gpu("GPU-aa", used=used), Gpu("GPU-bb", used=1))))
    assert history.used(("0", None)) == list(range(2, MOST_LOOKS + 2))
    history.add(machine(FakeNvml(Gpu("GPU-aa", used=GIB))))
    assert history.used(("0", None))[-1] == GIB
    assert history.used(("1", None)) == []


def tree(pids: Sequence[int], parents: dict[int, int]) -> list[str]:
    return [f"{each.prefix}{each.pid}" for each in process_tree(pids, parents.get)]


def test_processes_stand_below_those_that_started_them() -> None:
    assert tree([30, 20, 10], {30: 10, 20: 10}) == ["10", "├ 30", "└ 20"]
    assert tree([30, 20, 10], {30: 25, 25: 20, 20: 10}) == ["10", "└ 20", "  └ 30"]


def test_what_started_several_is_shown_too_but_not_the_first_process() -> None:
    assert tree([30, 20], {30: 10, 20: 10, 10: 1}) == ["10", "├ 30", "└ 20"]
    assert tree([30, 20], {30: 1, 20: 1}) == ["30", "20"]
    assert tree([30, 20, 9], {30: 10, 20: 10, 10: 5, 9: 5, 5: 1}) == [
        *("5", "├ 10", "│ ├ 30", "│ └ 20", "└ 9"),
    ]


@given(
    st.lists(st.integers(2, 30), unique=True),
    st.dictionaries(st.integers(2, 30), st.integers(0, 30)),
)
def test_a_tree_has_every_process_once(pids: list[int], parents: dict[int, int]) -> None:
    """Parents that were read at different moments may form a cycle."""
    shown = [each.pid for each in process_tree(pids, parents.get)]
    assert len(shown) == len(set(shown))
    assert set(shown) >= set(pids)


def test_the_parent_of_a_process_is_known() -> None:
    assert parent_of(os.getpid()) == os.getppid()
    assert parent_of(2**30) is None


def test_an_environment_hides_secrets_and_begins_with_what_is_about_gpus() -> None:
    told = {
        "A": "1", "NCCL_DEBUG": "INFO", "WANDB_API_KEY": "a", "DB_PASSWORD": "b", "KEYBOARD": "us",
        "EMPTY_TOKEN": "",
    }  # fmt: skip
    code = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code],
        env=told, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as started:  # fmt: skip
        assert started.stdout is not None
        started.stdout.readline()
        found = environment(started.pid)
        started.kill()
    assert found[0] == ("NCCL_DEBUG", "INFO")
    assert dict(found) | {"LC_CTYPE": ""} == told | {
        "WANDB_API_KEY": "(hidden)", "DB_PASSWORD": "(hidden)", "LC_CTYPE": "",
    }  # fmt: skip
    with pytest.raises(InputError, match="has ended"):
        environment(2**30)


def test_a_number_that_was_given_again_is_not_ended() -> None:
    with subprocess.Popen(["sleep", "600"]) as started:
        other = ChosenProcess(started.pid, ChosenProcess.of(started.pid).started - 1)
        with pytest.raises(InputError, match="has ended"):
            other.end(signal.SIGKILL)
        assert started.poll() is None
        started.kill()
