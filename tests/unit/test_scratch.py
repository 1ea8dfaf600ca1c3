"""Tests the scratch layer: a program sees its own writes, but real files stay unchanged.

The programs load the layer's library before libc, and do not use PyTorch.
"""

from __future__ import annotations

import csv
import errno
import glob
import inspect
import json
import mmap
import multiprocessing
import os
import random
import re
import shutil
import socket
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path

import numpy as np
import pytest

from plimsoll.base.errors import InputError
from plimsoll.base.units import MiB
from plimsoll.prediction.offline import offline
from plimsoll.prediction.scratch import enter_scratch
from plimsoll.prediction.trials import scratch_layer
from plimsoll.prediction.trials.kinds import Kind
from plimsoll.prediction.trials.outcome import Outcome
from plimsoll.prediction.trials.scratch_layer import written
from plimsoll.prediction.trials.trial import held, outcome_of
from plimsoll.prediction.trials.written import Written
from tests.apart import command_of

State = dict[str, tuple[str, int, str]]
Came = str | int | list[str] | State


def make_real(folder: Path) -> Path:
    """Makes a folder with an entry of each kind."""
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "old.txt").write_text("old\n")
    (folder / "rights").write_text("mine")
    (folder / "rights").chmod(0o640)
    (folder / "sub" / "in.txt").write_text("in\n")
    (folder / "sub" / "deep" / "end.txt").write_text("end\n")
    (folder / "link.txt").symlink_to("sub/in.txt")
    (folder / "link").symlink_to("sub")
    (folder / "broken").symlink_to("nowhere")
    return folder


def state_of(folder: Path) -> State:
    """Returns each entry of a folder with its kind, mode and contents."""
    return {str(path.relative_to(folder)): entry_of(path) for path in sorted(folder.rglob("*"))}


def entry_of(path: Path) -> tuple[str, int, str]:
    status = path.lstat()
    kind = stat.filemode(status.st_mode)[0]
    if kind == "l":
        return kind, 0, str(path.readlink())
    return kind, stat.S_IMODE(status.st_mode), path.read_bytes().hex() if kind == "-" else ""


@contextmanager
def layer() -> Iterator[tuple[Path, Path, dict[str, str]]]:
    """Yields a folder with files, a scratch folder over it, and the environment for programs."""
    with tempfile.TemporaryDirectory() as place:
        top = Path(place).resolve()
        real = make_real(top / "real")
        scratch = top / "scratch"
        scratch.mkdir()
        (scratch / "temporary").mkdir()
        yield real, scratch, {**os.environ, **scratch_layer.environment(scratch, [])}


def run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def trial(kind: Kind) -> Iterator[tuple[Path, Callable[[list[str]], tuple[str, Outcome]]]]:
    """Yields a folder with files, and a function that runs a command without changing the files."""
    with tempfile.TemporaryDirectory() as place:
        top = Path(place).resolve()
        real = make_real(top / "real")
        scratch = top / "scratch"
        scratch.mkdir()
        (scratch / "temporary").mkdir()

        def run_held(command: list[str]) -> tuple[str, Outcome]:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("PLIMSOLL_TRIAL", kind)
                holder = held(command, scratch, [], with_network=False)
            printed = run(holder, real, {**os.environ, "TMPDIR": str(scratch / "temporary")})
            outcome = outcome_of(scratch)
            assert outcome is not None
            if outcome.kept_apart is None:
                pytest.skip(outcome.failure)
            return printed, outcome

        yield real, run_held


def in_a_trial(
    *expected: str, kinds: Sequence[Kind] = tuple(Kind)
) -> Callable[[Callable[[], None]], Callable[[Kind], None]]:
    """Returns a decorator that runs a test as a trial, and checks what the trial wrote.

    The test runs in a new process, in a folder of real files. These files must not change.

    Args:
        *expected: The writes that the trial should report. Each is a kind and a path, such as
            "new second" for the new file `second`.
        kinds: The kinds of trials that run the test.
    """

    def decorate(test: Callable[[], None]) -> Callable[[Kind], None]:
        @pytest.mark.parametrize("kind", kinds)
        @wraps(test)
        def run_in_it(kind: Kind) -> None:
            with trial(kind) as (real, run_held):
                before = state_of(real)
                _, outcome = run_held([sys.executable, *command_of(test, [])])
                assert outcome.status == 0
                assert state_of(real) == before
                found = [f"{one.kind} {one.path.removeprefix(f'{real}/')}"
                         for one in outcome.written]  # fmt: skip
            assert sorted(found) == sorted(expected)

        run_in_it.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter("kind", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
        )
        return run_in_it

    return decorate


@in_a_trial("new new.txt")
def test_a_new_file_is_seen_in_its_folder() -> None:
    Path("new.txt").write_text("new")
    assert Path("new.txt").read_text() == "new"
    assert "new.txt" in os.listdir()
    assert Path("new.txt").resolve() == Path.cwd() / "new.txt"


@in_a_trial("changed old.txt")
def test_a_file_is_overwritten() -> None:
    Path("old.txt").write_text("longer than before")
    assert Path("old.txt").read_text() == "longer than before"


@in_a_trial("changed old.txt", "changed rights", "changed sub/in.txt")
def test_appending_and_writing_within_keep_the_rest() -> None:
    with open("old.txt", "a") as file:
        file.write("more")
    assert Path("old.txt").read_text() == "old\nmore"
    with open("rights", "r+b") as file:
        file.seek(1)
        file.write(b"!")
    assert Path("rights").read_text() == "m!ne"
    assert stat.S_IMODE(Path("rights").stat().st_mode) == 0o640
    os.truncate("link.txt", 1)
    assert Path("sub/in.txt").read_text() == "i"


@in_a_trial()
def test_reading_writes_nothing() -> None:
    assert Path("old.txt").read_text() == "old\n"
    assert sorted(os.listdir("link")) == ["deep", "in.txt"]
    with open("old.txt", "a"):
        pass
    assert not Path("missing").exists()


@in_a_trial("removed old.txt", "removed sub")
def test_what_is_removed_is_gone() -> None:
    os.unlink("old.txt")
    assert not os.path.lexists("old.txt")
    with pytest.raises(FileNotFoundError):
        os.open("old.txt", os.O_RDONLY)
    with pytest.raises(OSError, match="not empty"):
        os.rmdir("sub")
    shutil.rmtree("sub")
    assert not os.path.exists("link")
    assert os.path.islink("link")
    assert sorted(os.listdir()) == ["broken", "link", "link.txt", "rights"]


@in_a_trial("new a/b/c.txt", "new copy/deep/end.txt", "new copy/in.txt")
def test_folders_are_one_with_the_real_ones() -> None:
    os.makedirs("a/b")
    Path("a/b/c.txt").write_text("c")
    shutil.copytree("sub", "copy")
    walked = {folder: (sorted(folders), sorted(files)) for folder, folders, files in os.walk(".")}
    assert walked["."][1] == ["broken", "link.txt", "old.txt", "rights"]
    assert walked["./a/b"] == ([], ["c.txt"])
    assert walked["./copy/deep"] == ([], ["end.txt"])
    assert sorted(glob.glob("*/*.txt")) == ["copy/in.txt", "link/in.txt", "sub/in.txt"]


@in_a_trial("new new.txt")
def test_links_of_the_layer_look_like_what_they_stand_for() -> None:
    Path("new.txt").write_text("")
    kinds = {entry.name: (entry.is_file(), entry.is_dir(), entry.is_symlink())
             for entry in os.scandir()}  # fmt: skip
    assert kinds == {
        "broken": (False, False, True),
        "link": (False, True, True),
        "link.txt": (True, False, True),
        "new.txt": (True, False, False),
        "old.txt": (True, False, False),
        "rights": (True, False, False),
        "sub": (False, True, False),
    }
    assert not os.path.islink("old.txt")
    assert stat.S_ISREG(os.lstat("old.txt").st_mode)
    assert os.readlink("link") == "sub"
    with pytest.raises(OSError, match="Invalid argument"):
        os.readlink("old.txt")
    assert os.path.realpath("link/in.txt") == os.path.join(os.getcwd(), "sub", "in.txt")


@in_a_trial("changed old.txt", "new moved", "new sub/late.txt", "removed rights")
def test_files_are_replaced_by_renaming() -> None:
    with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as file:
        file.write("whole")
    os.replace(file.name, "old.txt")
    assert Path("old.txt").read_text() == "whole"
    os.rename("rights", "moved")
    assert Path("moved").read_text() == "mine"
    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        file.write("late")
    shutil.move(file.name, "link/late.txt")
    assert Path("sub/late.txt").read_text() == "late"


@in_a_trial(
    *("new away/deep", "new away/in.txt", "new away/late.txt", "removed sub"),
    kinds=[Kind.WALL, Kind.LAYER],
)
def test_a_folder_is_moved_with_all_in_it() -> None:
    os.rename("sub", "away")
    Path("away/late.txt").write_text("late")
    assert Path("away/deep/end.txt").read_text() == "end\n"
    assert not os.path.exists("sub")


@in_a_trial("new away/deep/end.txt", "new away/in.txt", "removed sub", kinds=[Kind.OVERLAY])
def test_under_an_overlay_a_real_folder_is_moved_by_copying() -> None:
    with pytest.raises(OSError, match="cross-device"):
        os.rename("sub", "away")
    shutil.move("sub", "away")
    assert Path("away/deep/end.txt").read_text() == "end\n"


@in_a_trial("new here")
def test_the_current_folder_is_known_by_its_name() -> None:
    home = os.getcwd()
    os.mkdir("here")
    os.chdir("here")
    assert os.getcwd() == os.path.join(home, "here")
    assert sorted(os.listdir("..")) == sorted(os.listdir(home))
    Path("x").write_text("x")
    os.unlink("x")
    assert subprocess.check_output(["/bin/pwd"], text=True).strip() == os.getcwd()
    assert os.readlink("/proc/self/cwd") == os.getcwd()


@in_a_trial("changed sub/in.txt", "new from_env", "new from_shell", "removed old.txt")
def test_programs_that_are_started_see_it_too() -> None:
    shell = "echo x > from_shell && rm old.txt && echo more >> sub/in.txt && cat sub/in.txt"
    assert subprocess.check_output(shell, shell=True, text=True) == "in\nmore\n"
    subprocess.run(["/bin/sh", "-c", "echo y > from_env"], env={}, check=True)
    assert Path("from_env").read_text() == "y\n"
    script = Path("script.sh")
    script.write_text("#!/bin/sh\ncat from_shell\n")
    script.chmod(0o755)
    assert subprocess.check_output(["./script.sh"], text=True) == "x\n"
    script.unlink()


def _write_number(number: int) -> None:
    Path(f"number-{number}").write_text(str(number))


@in_a_trial(*(f"new number-{number}" for number in range(4)))
def test_forked_and_spawned_processes_see_it_too() -> None:
    for kind in ("fork", "spawn"):
        context = multiprocessing.get_context(kind)
        with context.Pool(2) as pool:
            pool.map(_write_number, range(4))
    assert [Path(f"number-{number}").read_text() for number in range(4)] == list("0123")


@in_a_trial("changed old.txt", *(f"new thread-{number}" for number in range(8)))
def test_threads_lose_nothing() -> None:
    def work(number: int) -> None:
        for _ in range(25):
            with open("old.txt", "a") as file:
                file.write(".")
            temporary = Path(f"{number}.tmp")
            temporary.write_text(str(number))
            temporary.replace(f"thread-{number}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Path("old.txt").read_text() == "old\n" + "." * 200


@in_a_trial("new array.npy", "new data.db", "new mapped", "new table.parquet", "new table.csv")
def test_libraries_write_as_they_do() -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    np.save("array.npy", np.arange(10))
    assert np.load("array.npy", mmap_mode="r+")[3] == 3
    mapped = np.memmap("mapped", dtype=np.int32, mode="w+", shape=(4,))
    mapped[:] = 7
    mapped.flush()
    assert Path("mapped").read_bytes() == np.full(4, 7, np.int32).tobytes()
    base = sqlite3.connect("data.db")
    base.execute("PRAGMA journal_mode=WAL")
    base.execute("CREATE TABLE numbers (one INTEGER)")
    base.execute("INSERT INTO numbers VALUES (1)")
    base.commit()
    base.close()
    assert sqlite3.connect("data.db").execute("SELECT one FROM numbers").fetchall() == [(1,)]
    pq.write_table(pa.table({"x": [1, 2]}), "table.parquet")
    assert pq.read_table("table.parquet").num_rows == 2
    with open("table.csv", "w", newline="") as file:
        csv.writer(file).writerow([1, 2])


@in_a_trial("changed old.txt")
def test_a_map_of_a_file_is_of_its_copy() -> None:
    with open("old.txt", "r+b") as file, mmap.mmap(file.fileno(), 0) as pages:
        pages[0:3] = b"new"
        pages.flush()
    assert Path("old.txt").read_text() == "new\n"


@in_a_trial("changed old.txt", "changed rights", "removed sub/in.txt")
def test_open_folders_lead_to_what_was_written() -> None:
    folder = os.open(".", os.O_RDONLY)
    Path("old.txt").write_text("new")
    assert os.read(os.open("old.txt", os.O_RDONLY, dir_fd=folder), 9) == b"new"
    os.unlink("in.txt", dir_fd=os.open("sub", os.O_RDONLY, dir_fd=folder))
    assert os.listdir("sub") == ["deep"]
    Path("rights").unlink()
    os.symlink("old.txt", "rights", dir_fd=folder)
    assert sorted(os.listdir(folder)) == sorted(os.listdir("."))
    os.fchdir(folder)
    assert Path("rights").read_text() == "new"


@in_a_trial("changed old.txt", "changed rights", "changed sub/in.txt")
def test_rights_and_times_are_changed_in_the_copy() -> None:
    os.chmod("old.txt", 0o600)
    assert stat.S_IMODE(os.stat("old.txt").st_mode) == 0o600
    os.utime("rights", (1, 2))
    assert os.stat("rights").st_mtime == 2
    with open("sub/in.txt") as file:  # opened for reading, but its mode can still change
        os.fchmod(file.fileno(), 0o400)
    assert stat.S_IMODE(os.stat("sub/in.txt").st_mode) == 0o400


@in_a_trial("new second", "new hard")
def test_hard_links_are_of_one_file() -> None:
    Path("hard").write_text("one")
    os.link("hard", "second")
    with open("second", "a") as file:
        file.write("two")
    assert Path("hard").read_text() == "onetwo"


@in_a_trial("new kept")
def test_a_file_without_a_name_gets_one() -> None:
    with tempfile.TemporaryFile(dir=".") as file:
        file.write(b"nowhere")
    unnamed = os.open(".", os.O_TMPFILE | os.O_RDWR)
    os.write(unnamed, b"kept")
    os.link(f"/proc/self/fd/{unnamed}", "kept", src_dir_fd=unnamed, follow_symlinks=True)
    assert Path("kept").read_text() == "kept"


@in_a_trial("new socket", "new pipe")
def test_sockets_and_pipes_have_names_in_the_layer() -> None:
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind("socket")
        server.listen()
        client.connect(os.path.abspath("socket"))
    os.mkfifo("pipe")
    assert stat.S_ISFIFO(os.stat("pipe").st_mode)


@in_a_trial()
def test_bad_paths_fail_as_they_do() -> None:
    for path, number in (("", errno.ENOENT), ("x" * 5000, errno.ENAMETOOLONG),
                         ("old.txt/x", errno.ENOTDIR), ("no/x", errno.ENOENT),
                         ("sub", errno.EISDIR)):  # fmt: skip
        with pytest.raises(OSError, match=re.escape(os.strerror(number))):
            os.open(path, os.O_WRONLY | os.O_CREAT)
    with pytest.raises(FileExistsError):
        os.mkdir("sub")
    with pytest.raises(FileExistsError):
        os.open("old.txt", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.close(os.open("/dev/null", os.O_WRONLY))


@in_a_trial()
def test_devices_and_processes_are_nobodys_files() -> None:
    with open("/dev/null", "w") as file:
        file.write("x")
    with open("/proc/self/comm", "w") as file:
        file.write("named")
    assert Path("/proc/self/comm").read_text() == "named\n"


@in_a_trial("new done")
def test_a_folder_that_was_removed_under_a_process_is_no_folder() -> None:
    os.mkdir("gone")
    home = os.getcwd()
    os.chdir("gone")
    os.rmdir("../gone")
    with pytest.raises(FileNotFoundError):
        os.getcwd()
    with pytest.raises(FileNotFoundError):
        os.mkdir("x")
    Path(home, "done").write_text("")


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed")
def test_who_may_not_write_is_refused_as_ever() -> None:
    with layer() as (real, scratch, environment):
        os.chmod(real.parent, 0o755)
        os.chmod(scratch, 0o777)
        (scratch / "temporary").rmdir()
        done = subprocess.run(
            ["/bin/sh", "-c", "echo x > new; echo x > old.txt; rm old.txt; mkdir f; chmod 700 sub; "
             "cat old.txt; touch /tmp/plimsoll-not-there-$$; ls /tmp/plimsoll-not-there-$$"],
            cwd=real, env=environment, capture_output=True, text=True, check=False,
            user=65534, group=65534, extra_groups=[],
        )  # fmt: skip
        assert done.stdout.startswith("old\n/tmp/plimsoll-not-there-")
        assert done.stderr.count("Permission denied") + done.stderr.count("not permitted") == 5
        assert not list(Path("/tmp").glob("plimsoll-not-there-*"))


def test_a_folder_of_thousands_is_copied_as_links_once() -> None:
    with layer() as (real, scratch, environment):
        for number in range(3000):
            (real / f"image-{number}").touch()
        run(["/bin/sh", "-c", "for n in 1 2 3; do echo $n > index-$n; done"], real, environment)
        assert [one.path for one in written(scratch)] == [
            str(real / f"index-{n}") for n in (1, 2, 3)
        ]


def test_a_large_file_is_copied_with_its_holes() -> None:
    with layer() as (real, scratch, environment):
        with (real / "large").open("wb") as file:
            for place in (0, 1 << 30, 5 << 30):
                file.seek(place)
                file.write(b"data" * 1024)
            file.truncate(6 << 30)
        append = "f = open('large', 'r+b'); f.seek(4); f.write(b'!')"
        run([sys.executable, "-c", append], real, environment)
        copy = scratch / "files" / real.relative_to("/") / "large"
        assert copy.stat().st_size == 6 << 30
        assert copy.stat().st_blocks * 512 < MiB
        with copy.open("rb") as file:
            for place, start in ((0, b"data!ata"), (1 << 30, b"datadata"), (5 << 30, b"datadata")):
                file.seek(place)
                assert file.read(8) == start
            file.seek(3 << 30)
            assert file.read(8) == bytes(8)
        with (real / "large").open("rb") as file:
            assert file.read(8) == b"datadata"


def test_without_the_library_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plimsoll.prediction.trials.scratch_layer._LIBRARY", "libnone.so")
    with pytest.raises(InputError, match=r"libnone\.so is missing.*--keep-writes"):
        scratch_layer.environment(tmp_path, [])


def test_where_folders_cannot_be_marked_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chmod = Path.chmod
    monkeypatch.setattr(Path, "chmod", lambda path, mode: chmod(path, mode & ~stat.S_ISUID))
    with pytest.raises(InputError, match="TMPDIR"):
        scratch_layer.check_folder(tmp_path)


def test_settings_keep_trackers_offline_and_mlflow_in_files() -> None:
    assert offline({})["WANDB_MODE"] == "disabled"
    assert not any(name.startswith("MLFLOW") for name in offline({}))
    for remote in (
        "http://there:5000",
        "databricks",
        "databricks://profile",
        "postgresql://u@h/db",
    ):
        assert offline({"MLFLOW_TRACKING_URI": remote})["MLFLOW_TRACKING_URI"] == "mlruns"
    for local in ("mlruns", "/data/mlruns", "file:///data/mlruns", "sqlite:///runs.db"):
        assert "MLFLOW_TRACKING_URI" not in offline({"MLFLOW_TRACKING_URI": local})


def test_a_second_layer_knows_nothing_of_the_first() -> None:
    with layer() as (real, scratch, environment):
        run(["/bin/sh", "-c", "echo x > new"], real, environment)
        assert written(scratch) == [Written(str(real / "new"), 2, "new")]
        other = scratch.with_name("other")
        other.mkdir()
        again = {**os.environ, **scratch_layer.environment(other, [])}
        assert "new" not in run(["/bin/ls"], real, again)


def test_without_the_library_the_process_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/not/loaded/libplimsoll_scratch.so")
    with pytest.raises(InputError, match="--keep-writes"):
        enter_scratch(str(tmp_path))


def test_paths_are_relative_in_the_current_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    with layer() as (real, scratch, environment):
        run(["/bin/sh", "-c", "echo longer > sub/x; echo y > ../y"], real, environment)
        monkeypatch.chdir(real)
        assert written(scratch) == [
            Written("sub/x", 7, "new"), Written(str(real.with_name("y")), 2, "new"),
        ]  # fmt: skip


def operate(seed: int, count: int, moves_folders: bool) -> None:
    """Does random operations in the current folder. Prints each result and the final state."""
    source = random.Random(seed)
    names = ("old.txt", "rights", "sub", "link", "link.txt", "broken", "a", "b")

    used: list[str] = []

    def path() -> str:
        parts = [source.choice(names) for _ in range(source.choice((1, 1, 1, 2, 2, 3)))]
        if source.random() < 0.1:
            parts.insert(source.randrange(len(parts) + 1), "..")
        if parts[0] == "..":
            parts.insert(0, "sub")
        used.append("/".join(parts))
        return used[-1]

    def write(mode: str) -> str:
        with open(path(), mode) as file:
            file.write(source.choice("xyz") * source.randrange(5))
            return mode

    def move() -> None:
        one, other = path(), path()
        if moves_folders or not os.path.isdir(one):
            os.rename(one, other)

    def copy_folder() -> None:
        one, other = path(), path()
        if not os.path.realpath(other).startswith(os.path.realpath(one)):
            shutil.copytree(one, other, symlinks=True)

    def in_folder() -> list[str]:
        folder = os.open(path(), os.O_RDONLY | os.O_DIRECTORY)
        try:
            with open(os.open("a", os.O_WRONLY | os.O_CREAT, dir_fd=folder), "w") as file:
                file.write("dir_fd")
            return sorted(os.listdir(folder))
        finally:
            os.close(folder)

    actions: list[Callable[[], object]] = [
        lambda: write("w"), lambda: write("a"), lambda: write("r+"), lambda: write("x"),
        lambda: Path(path()).read_text(), lambda: sorted(os.listdir(path())),
        lambda: os.mkdir(path()), lambda: os.rmdir(path()), lambda: os.unlink(path()),
        move, move,
        lambda: os.symlink(source.choice(names), path()),
        lambda: os.link(path(), path(), follow_symlinks=False),
        lambda: os.chmod(path(), source.choice((0o600, 0o640))), lambda: os.truncate(path(), 1),
        lambda: os.readlink(path()), lambda: os.path.relpath(os.path.realpath(path())),
        lambda: shutil.rmtree(path()) if source.random() < 0.3 else None,
        copy_folder,
        lambda: stat.filemode(os.lstat(path()).st_mode), lambda: os.path.exists(path()),
        in_folder, lambda: os.utime(path(), (5, 5)),
    ]  # fmt: skip
    outcomes: list[object] = []
    for _ in range(count):
        number = source.randrange(len(actions))
        try:
            outcome = actions[number]()
        except OSError as error:
            outcome = errno.errorcode.get(error.errno or 0, type(error).__name__)
        outcomes.append((number, used.copy(), outcome))
        used.clear()
    print(json.dumps([outcomes, state_of(Path.cwd())]))


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("seed", range(6))
def test_a_trial_is_like_the_files_themselves(seed: int, kind: Kind) -> None:
    """Checks that a program has the same results in a trial as without a trial, on equal files."""
    with trial(kind) as (real, run_held):
        before = state_of(real)
        model = make_real(real.with_name("model"))
        command = [sys.executable, *command_of(operate, [seed, 400, kind != Kind.OVERLAY])]
        expected = json.loads(run(command, model, {**os.environ}))
        printed, _ = run_held(command)
        found = json.loads(printed)
        assert state_of(real) == before
        for number, (one, other) in enumerate(zip(found[0], expected[0], strict=True)):
            assert one == other, f"step {number}"
        assert found[1] == expected[1]
