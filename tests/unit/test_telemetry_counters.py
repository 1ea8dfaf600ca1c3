"""Tests the file in which a process publishes its memory counters: no reader sees half of them."""

from __future__ import annotations

import multiprocessing
import os
import struct
import subprocess
import sys
import time
import zlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plimsoll import InputError
from plimsoll.base.process_place import ProcessPlace
from plimsoll.base.telemetry.counters import (
    FILE_BYTES,
    MAX_DEVICES,
    CountersFile,
    DeviceCounters,
    ProcessCounters,
    read_counters,
    read_processes,
)
from plimsoll.base.telemetry.folder import counters_path, private_folder, socket_path
from plimsoll.base.telemetry.identity import pid_namespace, start_ticks
from plimsoll.base.telemetry.nvml import Reading
from plimsoll.integrations.top.model import put_together
from plimsoll.integrations.top.text import render
from tests.waiting import wait_for

SIZES = st.integers(0, 2**63 - 1)
MAYBE = st.none() | SIZES
# Short printable text, which the file keeps unchanged.
WORDS = st.text(st.characters(categories=("L", "N", "P")), max_size=12)

RANKS = st.none() | st.integers(0, 2**31 - 1)

DEVICES = st.builds(
    DeviceCounters,
    index=st.integers(0, 63),
    is_simulated=st.booleans(),
    name=WORDS,
    uuid=st.uuids().map(str),
    total_bytes=MAYBE,
    used_bytes=MAYBE,
    context_bytes=MAYBE,
    allocated_bytes=SIZES,
    active_bytes=SIZES,
    reserved_bytes=SIZES,
    fragments_bytes=MAYBE,
    shared_bytes=SIZES,
    shared_allocated_bytes=SIZES,
    peak_allocated_bytes=SIZES,
    peak_reserved_bytes=SIZES,
    num_alloc_retries=SIZES,
    num_ooms=SIZES,
    num_spills=SIZES,
)
PROCESSES = st.builds(
    ProcessCounters,
    pid=st.integers(1, 2**22),
    start_ticks=SIZES,
    namespace=SIZES,
    heartbeat_ns=SIZES,
    interval_ns=SIZES,
    pinned_bytes=MAYBE,
    shared_total_bytes=MAYBE,
    program=WORDS,
    allocator=st.sampled_from(["elastic", "native", "torch"]),
    devices=st.lists(DEVICES, max_size=4).map(tuple),
    place=st.builds(
        ProcessPlace,
        rank=RANKS,
        local_rank=RANKS,
        world_size=RANKS,
        host=st.none() | WORDS.filter(bool),
        job=st.none() | WORDS.filter(bool),
    ),
)
same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def device(value: int = 0) -> DeviceCounters:
    return DeviceCounters(0, False, "H100", "", *[value] * 14)


def process(**changes: object) -> ProcessCounters:
    made = ProcessCounters(
        pid=os.getpid(),
        start_ticks=start_ticks(os.getpid()) or 0,
        namespace=pid_namespace(),
        heartbeat_ns=time.monotonic_ns(),
        interval_ns=250_000_000,
        pinned_bytes=None,
        shared_total_bytes=None,
        program="train.py",
        allocator="elastic",
        devices=(device(),),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@same_folder
@given(PROCESSES)
def test_what_is_written_is_read(tmp_path: Path, written: ProcessCounters) -> None:
    path = tmp_path / "1.counters"
    CountersFile(path).write(written)
    assert read_counters(path) == written
    assert path.stat().st_size == FILE_BYTES
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_last_of_many_records_counts(tmp_path: Path) -> None:
    file = CountersFile(tmp_path / "1.counters")
    for value in range(50):
        file.write(process(devices=(device(value),) * (value % 4)))
    assert read_counters(tmp_path / "1.counters").devices == (device(49),)


def test_long_names_are_cut_between_letters_and_devices_at_the_most(tmp_path: Path) -> None:
    path = tmp_path / "1.counters"
    CountersFile(path).write(process(program="ü" * 500, devices=(device(),) * 100))
    found = read_counters(path)
    assert found.program == "ü" * 64
    assert len(found.devices) == MAX_DEVICES


def test_names_cannot_move_a_terminals_cursor(tmp_path: Path) -> None:
    path = tmp_path / "1.counters"
    CountersFile(path).write(process(program="\x1b[2J\x1b]0;owned\x07\n", devices=(device(),)))
    shown = render(put_together(Reading(), [read_counters(path)], program_of=str), 200)
    assert r"\x1b[2J\x1b]0;owned\x07\n" in shown.text.plain


def write_for_ever(path: str) -> None:
    file = CountersFile(Path(path))
    value = 0
    while True:
        value += 1
        file.write(process(pid=1, heartbeat_ns=value, devices=(device(value),) * (1 + value % 40)))


def test_no_reader_sees_half_of_a_record(tmp_path: Path) -> None:
    path = tmp_path / "1.counters"
    writer = multiprocessing.get_context("spawn").Process(
        target=write_for_ever, args=(str(path),), daemon=True
    )
    writer.start()
    try:
        wait_for(lambda: path.exists() and path.stat().st_size >= FILE_BYTES)
        seen, last, ends = 0, 0, time.monotonic() + 120
        while seen < 1000:
            assert time.monotonic() < ends
            try:
                found = read_counters(path)
            except InputError:  # the writer was active at each try, so no whole record was found
                continue
            assert found.heartbeat_ns >= last
            last = found.heartbeat_ns
            assert found.devices == (device(last),) * (1 + last % 40)
            seen += 1
    finally:
        writer.kill()
        writer.join()


@same_folder
@given(st.binary(max_size=2 * FILE_BYTES))
def test_foreign_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "1.counters"
    path.write_bytes(content)
    with pytest.raises(InputError):
        read_counters(path)


@same_folder
@given(cut=st.integers(0, FILE_BYTES - 1))
def test_truncated_files_are_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "1.counters"
    CountersFile(path).write(process())
    os.truncate(path, cut)
    with pytest.raises(InputError):
        read_counters(path)


@same_folder
@given(at=st.integers(0, 700), to=st.integers(0, 255))
def test_a_changed_byte_is_noticed_or_means_nothing(tmp_path: Path, at: int, to: int) -> None:
    path = tmp_path / "1.counters"
    written = process()
    CountersFile(path).write(written)
    content = bytearray(path.read_bytes())
    content[at] = to
    path.write_bytes(content)
    with suppress(InputError):
        assert read_counters(path) == written


@same_folder
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=8, max_size=8), st.binary(max_size=1000))
def test_hostile_records_with_a_right_checksum_are_refused_or_plausible(
    tmp_path: Path, numbers: list[int], rest: bytes
) -> None:
    path = tmp_path / "1.counters"
    CountersFile(path).write(process())
    record = struct.pack("<8q", *numbers) + rest
    guard = struct.pack("<QII", 2, zlib.crc32(record, 2), len(record))
    content = bytearray(path.read_bytes())
    content[16 : 16 + len(guard) + len(record)] = guard + record
    path.write_bytes(content)
    try:
        found = read_counters(path)
    except InputError:
        return
    assert min(found.pid, found.start_ticks, found.interval_ns) >= 0
    assert len(found.devices) <= MAX_DEVICES


def test_another_version_says_so(tmp_path: Path) -> None:
    path = tmp_path / "1.counters"
    CountersFile(path).write(process())
    with path.open("r+b") as file:
        file.seek(8)
        file.write(struct.pack("<I", 7))
    with pytest.raises(InputError, match="another version of plimsoll"):
        read_counters(path)


def test_a_writer_that_died_in_the_middle_leaves_no_record(tmp_path: Path) -> None:
    path = tmp_path / "1.counters"
    CountersFile(path).write(process())
    with path.open("r+b") as file:
        file.seek(16)
        file.write(struct.pack("<Q", 3))
    with pytest.raises(InputError, match="no whole record"):
        read_counters(path)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "gone"])
def test_only_plain_files_are_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "1.counters"
    if kind == "link":
        CountersFile(tmp_path / "2").write(process())
        path.symlink_to(tmp_path / "2")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    with pytest.raises((InputError, OSError)):
        read_counters(path)


@pytest.mark.parametrize("length", [0, 10, FILE_BYTES // 2, 2 * FILE_BYTES])
def test_a_file_of_another_length_is_made_whole_again(tmp_path: Path, length: int) -> None:
    path = tmp_path / "1.counters"
    file = CountersFile(path)
    file.write(process())
    path.write_bytes(b"x" * length)
    file.write(process(program="again"))
    assert read_counters(path).program == "again"


def test_a_removed_file_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "1.counters"
    file = CountersFile(path)
    file.write(process())
    path.unlink()
    file.write(process(program="again"))
    assert read_counters(path).program == "again"


def test_a_link_is_not_followed_by_the_writer(tmp_path: Path) -> None:
    path, target = tmp_path / "1.counters", tmp_path / "victim"
    target.write_text("mine")
    file = CountersFile(path)
    path.symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        file.write(process())
    assert target.read_text() == "mine"


class TestAllProcesses:
    def folder(self, tmp_path: Path) -> Path:
        folder = tmp_path / "plimsoll"
        folder.mkdir(mode=0o700)
        return folder

    def publish(self, folder: Path, counters: ProcessCounters) -> Path:
        path = counters_path(folder, counters.pid)
        CountersFile(path).write(counters)
        socket_path(folder, counters.pid).touch()
        return path

    def test_running_ones_are_listed(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        self.publish(folder, mine := process())
        assert read_processes(only=folder) == [mine]

    def test_files_of_ended_processes_are_removed(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        self.publish(folder, process(pid=ended.pid))
        assert read_processes(only=folder) == []
        assert list(folder.iterdir()) == []

    def test_one_that_was_killed_and_not_yet_reaped_has_ended(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        self.publish(folder, process(pid=child.pid, start_ticks=start_ticks(child.pid)))
        assert [found.pid for found in read_processes(only=folder)] == [child.pid]
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert read_processes(only=folder) == []
        child.wait()

    def test_a_number_given_again_is_another_process(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        self.publish(folder, process(start_ticks=1))
        assert read_processes(only=folder) == []
        assert list(folder.iterdir()) == []

    @pytest.mark.parametrize("content", [None, b"", b"of another version"], ids=str)
    def test_other_containers_are_left_alone(self, tmp_path: Path, content: bytes | None) -> None:
        folder = self.folder(tmp_path)
        path, socket = folder / "4194999-1.counters", folder / "4194999-1.socket"
        CountersFile(path).write(process(pid=4_194_999, namespace=1, start_ticks=1))
        socket.touch()
        if content is not None:
            path.write_bytes(content)
        assert read_processes(only=folder) == []
        assert sorted(folder.iterdir()) == [path, socket]

    def test_containers_with_the_same_numbers_share_a_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = self.folder(tmp_path)
        self.publish(folder, mine := process())
        with monkeypatch.context() as there:
            there.setattr("plimsoll.base.telemetry.folder.pid_namespace", lambda: 1)
            self.publish(folder, process(namespace=1, program="elsewhere"))
        assert read_processes(only=folder) == [mine]
        assert len(list(folder.iterdir())) == 4

    def test_what_is_not_ours_is_left_alone(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        here = pid_namespace()
        for name in ("notes.txt", f"me-{here}.counters", "7.counters", f"٣-{here}.counters"):
            (folder / name).write_text("keep")
        counters_path(folder, os.getpid()).write_text("broken, but its process runs")
        assert read_processes(only=folder) == []
        assert len(list(folder.iterdir())) == 5

    def test_broken_files_of_ended_processes_are_removed(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        counters_path(folder, 4_194_999).write_text("broken")
        assert read_processes(only=folder) == []
        assert list(folder.iterdir()) == []

    def test_a_socket_whose_process_has_ended_is_removed(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        socket_path(folder, 4_194_999).touch()
        socket_path(folder, os.getpid()).touch()
        assert read_processes(only=folder) == []
        assert list(folder.iterdir()) == [socket_path(folder, os.getpid())]

    def test_a_folder_that_others_can_enter_is_not_trusted(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        self.publish(folder, process())
        folder.chmod(0o755)
        assert read_processes(only=folder) == []

    def test_a_linked_folder_is_not_trusted(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        self.publish(folder, process())
        (tmp_path / "link").symlink_to(folder)
        assert read_processes(only=tmp_path / "link") == []


def test_the_folder_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert private_folder() == tmp_path / "plimsoll"
    assert (tmp_path / "plimsoll").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_can_enter_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plimsoll").mkdir(mode=0o755)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert private_folder() != tmp_path / "plimsoll"


def test_silence_is_noticed() -> None:
    now = time.monotonic_ns()
    assert process(heartbeat_ns=now, interval_ns=10**12).silent_seconds() is None
    silent = process(heartbeat_ns=now - 60_000_000_000).silent_seconds()
    assert silent is not None
    assert silent >= 60
