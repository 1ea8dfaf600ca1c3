"""Tests the text of `plimsoll top` at three sizes, with and without colour.

With PLIMSOLL_WRITE_VIEWS=1 the tests record the expected text again.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from plimsoll.integrations.top.details import details
from plimsoll.integrations.top.model import Machine
from plimsoll.integrations.top.process_table import SORT_KEYS, Order, Row, SortKey
from plimsoll.integrations.top.text import View, render
from tests.unit.fake_nvml import FakeNvml, Gpu
from tests.unit.top_machines import GIB, MIB, busy_machine, device, machine, process

VIEWS = Path(__file__).parent.parent / "data" / "top"
WIDTHS = (80, 120, 200)


def check_view(name: str, text: str) -> None:
    path = VIEWS / f"{name}.txt"
    if os.environ.get("PLIMSOLL_WRITE_VIEWS"):
        path.write_text(text)
    assert text == path.read_text()


def printed(view: View, width: int, *, colour: bool) -> str:
    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        legacy_windows=False,
    )
    console.print(view.text, soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


@pytest.mark.parametrize("colour", [False, True], ids=["plain", "colour"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_text_is_as_on_record(
    width: int, colour: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    name = f"text.{width}.{'colour' if colour else 'plain'}"
    check_view(name, printed(render(busy_machine(), width), width, colour=colour))


def test_without_nvml_the_text_says_so() -> None:
    found = machine(FakeNvml(fails="Driver Not Loaded"), process(1, device()))
    check_view("text.80.no_nvml", printed(render(found, 80), 80, colour=False))


def test_nothing_to_see_is_said() -> None:
    found = machine(FakeNvml(fails="Driver Not Loaded"))
    check_view("text.80.nothing", printed(render(found, 80), 80, colour=False))


@pytest.mark.parametrize("width", [1, 40, 50, 60, 79, 81, 100, 160, 300])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for line in render(busy_machine(), width).text.plain.splitlines():
        assert len(line) <= max(width, 40)


@pytest.mark.parametrize(("width", "last"), [(40, "DRIVER"), (60, "ALLOCATED"), (80, "FRAGMENTS")])
def test_narrow_terminals_keep_what_matters_most(width: int, last: str) -> None:
    text = render(busy_machine(), width).text.plain
    heading = next(line for line in text.splitlines() if "PID" in line)
    assert heading.endswith(last)
    assert "4711" in text


@given(
    used=st.integers(0, 100 * GIB),
    parts=st.lists(st.integers(0, 40 * GIB), min_size=3, max_size=3),
    width=st.integers(40, 250),
)
def test_bars_are_as_long_as_their_room_whatever_the_figures(
    used: int, parts: list[int], width: int
) -> None:
    allocated, cached, fragments = parts
    counters = device(
        allocated_bytes=allocated,
        active_bytes=allocated,
        reserved_bytes=allocated + cached + fragments,
        fragments_bytes=fragments,
    )
    found = machine(FakeNvml(Gpu("GPU-aa", used=used)), process(1, counters))
    lines = render(found, width).text.plain.splitlines()
    assert len(lines[1]) == width
    shown = details(render(found, width).rows[0], width).plain.splitlines()
    bars = [line for line in shown if line.startswith(("dedicated", "shared"))]
    assert [len(line) for line in bars] == [width, width]


@pytest.mark.parametrize("sort", SORT_KEYS)
def test_processes_are_sorted(sort: SortKey) -> None:
    def pids(*, is_reversed: bool) -> list[int]:
        rows = render(busy_machine(), 80, Order(sort, is_reversed)).rows
        return [row.use.pid for row in rows if row.use is not None]

    expected = {
        "driver": [4711, 5150, 2200, 6000, 4711, 1100],
        "allocated": [5150, 4711, 4711, 6000, 1100, 2200],
        "cached": [4711, 6000, 5150, 4711, 1100, 2200],
        "fragments": [4711, 6000, 4711, 1100, 2200, 5150],
        "program": [6000, 1100, 2200, 5150, 4711, 4711],
        "pid": [1100, 2200, 4711, 4711, 5150, 6000],
        "gpu": [1100, 2200, 4711, 4711, 5150, 6000],
    }[sort]
    assert pids(is_reversed=False) == expected
    assert pids(is_reversed=True) == expected[::-1]


def test_rows_know_their_lines() -> None:
    view = render(busy_machine(), 80)
    lines = view.text.plain.splitlines()
    assert len(view.rows) == 3 + 6
    for row in view.rows:
        first = str(row.use.pid) if row.use else "sim" if row.gpu.is_simulated else "GPU"
        assert lines[row.line].split()[0] == first


def row_of(found: Machine, pid: int) -> Row:
    return next(row for row in render(found, 80).rows if row.use and row.use.pid == pid)


def test_details_add_up_in_words() -> None:
    assert details(row_of(busy_machine(), 5150), 80).plain.splitlines() == [
        "process 5150, serve.py --model a-very-long-name-of-a-model --port 8000, on GPU 1",
        "driver 31.01 GiB = context 520.00 MiB + reserved 34.00 GiB - shared 3.50 GiB",
        "shared: 3.50 GiB of the reserved memory lies in host memory, 3.00 GiB of it in",
        "live tensors; the driver does not count that",
        "reserved = allocated 33.00 GiB + cached 960.00 MiB + fragments - + pending",
        "64.00 MiB",
        "peak allocated 39.00 GiB, reserved 41.00 GiB; page-locked 0 bytes",
        "2 retries, 1 OOM, 17 spills",
    ]


def test_details_of_others_say_what_is_known() -> None:
    assert details(row_of(busy_machine(), 2200), 80).plain.splitlines() == [
        "process 2200, program2200, on GPU 0",
        "plimsoll does not run in this process, so only the driver's figure is known",
    ]


def test_the_documentation_shows_what_is_on_record() -> None:
    page = (VIEWS.parents[2] / "docs" / "top.md").read_text()
    assert (VIEWS / "text.80.plain.txt").read_text() in page


def test_eight_gpus_stand_above_their_processes_within_80_by_24() -> None:
    gpus = [Gpu(f"GPU-{n}{n}", used=(9 * n + 1) * GIB) for n in range(8)]
    for number, gpu in enumerate(gpus):
        gpu.compute = {1000 + number: gpu.used}
    lines = render(machine(FakeNvml(*gpus)), 80).text.plain.splitlines()
    assert [line.split()[:2] for line in lines[1:9]] == [["GPU", str(n)] for n in range(8)]
    assert [line.split()[0] for line in lines[10:19]] == ["PID", *map(str, range(1007, 999, -1))]
    assert len(lines) < 24
    assert {len(line) for line in lines[1:9]} == {80}


def test_what_is_spilled_is_said_where_figures_seem_not_to_add_up() -> None:
    spilled = device(
        allocated_bytes=78 * GIB, active_bytes=78 * GIB, reserved_bytes=80 * GIB,
        shared_bytes=10 * GIB, shared_allocated_bytes=9 * GIB, fragments_bytes=0,
    )  # fmt: skip
    gpu = Gpu("GPU-aa", used=71 * GIB)
    gpu.compute = {7: 70 * GIB + 520 * MIB}
    note = (
        "note: process 7 has spilled 10.00 GiB into the host's memory, which GPU 0's driver does "
        "not count"
    )
    assert note in render(machine(FakeNvml(gpu), process(7, spilled)), 120).text.plain
    kept = machine(FakeNvml(gpu), process(7, device()))
    assert "spilled" not in render(kept, 120).text.plain
