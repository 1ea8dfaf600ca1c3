"""Tests the wall, which lets no system call change a real file, and reports each refused call.

If the tests run as root, each test runs its programs a second time as another user, who owns the
real files.
"""

from __future__ import annotations

import errno
import os
import platform
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from plimsoll.prediction.trials import scratch_layer
from tests.walled import PASS, Ended, is_wall_possible, library, run_walled

pytestmark = [
    pytest.mark.skipif(not is_wall_possible(), reason="this kernel has no wall"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler"),
]
NOBODY = 65534
FCHMOD = 91 if platform.machine() == "x86_64" else 52
USERS = [None, NOBODY] if os.geteuid() == 0 else [None]

CHANGES_FILE = [
    "openat", "truncated", "openat2", "renameat2", "unlinkat", "truncate", "fchmod", "fchmodat",
    "fchmodat2", "fchmodat2 of an open file", "fchown", "fchownat", "utimensat",
    "utimensat of an open file", "setxattr", "fsetxattr", "removexattr", "setxattrat",
    "FS_IOC_SETFLAGS", "FS_IOC_FSSETXATTR", "open by /proc", "fchmodat by /proc",
]  # fmt: skip
if platform.machine() == "x86_64":  # system calls that only x86-64 has
    CHANGES_FILE += ["open", "creat", "rename", "chmod", "lchown", "utime"]
MAKES_NAME = ["made", "linkat", "symlinkat", "mkdirat", "mknodat"]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Returns two programs. Only the dynamic one can load the library that redirects writes."""
    folder = tmp_path_factory.mktemp("programs")
    open_to_all(folder)
    found = {"dynamic": folder / "dynamic", "static": folder / "static"}
    for name, path in found.items():
        options = ["-static"] if name == "static" else []
        source = Path(__file__).with_name("raw_calls.c")
        subprocess.run(["cc", *options, "-o", path, source], check=True)
    return found


def open_to_all(folder: Path) -> None:
    """Lets every user reach a pytest folder, which by default only this user may enter."""
    for each in (folder, *folder.parents[:3]):
        if stat.S_IMODE(each.stat().st_mode) == 0o700:
            each.chmod(0o755)


class Walls(NamedTuple):
    real: Path
    scratch: Path
    environment: dict[str, str]
    user: int | None

    @property
    def python(self) -> str:
        """Returns the tests' Python or, if `user` cannot reach that file, the system's Python."""
        own = Path(sys.executable).resolve()
        is_reached = self.user is None or all(each.stat().st_mode & 1 for each in own.parents)
        return sys.executable if is_reached else shutil.which("python3", path="/usr/bin") or ""

    def run(self, command: list[str], *, layered: bool = True) -> Ended:
        environment = self.environment if layered else dict(os.environ)
        return run_walled(command, self.real, environment, [self.scratch], self.user)


@pytest.fixture(params=USERS)
def walls(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Walls]:
    """Yields a user's files, which a preloaded library and the wall protect.

    The library redirects writes to a scratch folder. The wall refuses the writes that the library
    does not see.
    """
    open_to_all(tmp_path)
    real, scratch = tmp_path / "real", tmp_path / "scratch"
    for folder in (real, real / "empty", real / "outside", scratch):
        folder.mkdir()
    for name in ("file", "outside/target"):
        (real / name).write_text("kept\n")
        os.setxattr(real / name, "user.kept", b"1")
    (real / "link").symlink_to("outside/target")
    (scratch / "temporary").mkdir()
    variables = scratch_layer.environment(scratch, [], PASS)
    variables["TMPDIR"] = str(scratch / "temporary")
    if request.param is not None:
        for path in (real, *real.rglob("*"), scratch, *scratch.rglob("*")):
            os.chown(path, request.param, request.param, follow_symlinks=False)
    before = digest(real)
    yield Walls(real, scratch, {**os.environ, **variables}, request.param)
    assert digest(real) == before


def digest(folder: Path) -> dict[str, tuple[object, ...]]:
    return {str(path): (*all_of(path), contents(path)) for path in (folder, *folder.rglob("*"))}


def all_of(path: Path) -> tuple[object, ...]:
    status = path.lstat()
    names = os.listxattr(path, follow_symlinks=False)
    attributes = {name: os.getxattr(path, name, follow_symlinks=False) for name in names}
    return (
        status.st_mode, status.st_uid, status.st_gid, status.st_size, status.st_mtime_ns,
        status.st_ctime_ns, status.st_ino, status.st_nlink, attributes,
    )  # fmt: skip


def contents(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() and not path.is_symlink() else b""


@pytest.mark.parametrize("call", CHANGES_FILE)
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_raw_call_changes_no_file(
    programs: dict[str, Path], walls: Walls, kind: str, call: str
) -> None:
    ended = walls.run([str(programs[kind]), call, "file", "new"])
    assert (ended.status, ended.errors) == (0, "")
    assert int(ended.output) == errno.EACCES
    assert ended.refused == [(str(walls.real / "file"), str(programs[kind]))]


def test_the_layers_calls_leave_no_pass_behind(programs: dict[str, Path], walls: Walls) -> None:
    ended = walls.run([str(programs["dynamic"]), "what a call of libc's left", "file", "new"])
    assert int(ended.output) == errno.EACCES
    assert {path for path, _ in ended.refused} == {str(walls.real / "file")}
    assert len(ended.refused) == (2 if platform.machine() == "x86_64" else 1)


@pytest.mark.parametrize("call", MAKES_NAME)
def test_a_raw_call_makes_no_file(programs: dict[str, Path], walls: Walls, call: str) -> None:
    ended = walls.run([str(programs["static"]), call, "file", "new"])
    assert int(ended.output) == errno.EACCES
    assert ended.refused == [(str(walls.real / "new"), str(programs["static"]))]


@pytest.mark.parametrize("call", [*CHANGES_FILE, *MAKES_NAME])
def test_without_the_wall_the_call_succeeds(
    programs: dict[str, Path], tmp_path: Path, call: str
) -> None:
    (tmp_path / "file").write_text("kept\n")
    (tmp_path / "empty").mkdir()
    os.setxattr(tmp_path / "file", "user.kept", b"1")
    before = digest(tmp_path)
    command = [str(programs["static"]), call, "file", "new"]
    found = subprocess.check_output(command, cwd=tmp_path, text=True)
    if int(found) in (errno.ENOSYS, errno.EOPNOTSUPP):
        pytest.skip("this kernel or file system has no such call")
    assert int(found) == 0
    assert call == "openat" or digest(tmp_path) != before


def test_the_file_behind_a_link_is_named(programs: dict[str, Path], walls: Walls) -> None:
    for call in ("openat", "fchmodat", "open by /proc"):
        ended = walls.run([str(programs["static"]), call, "empty/../link", "new"])
        assert [path for path, _ in ended.refused] == [str(walls.real / "outside" / "target")]
    ended = walls.run([str(programs["static"]), "unlinkat", "./empty/../link", "new"])
    assert [path for path, _ in ended.refused] == [str(walls.real / "link")]


@pytest.mark.parametrize("call", ["openat", "unlinkat", "truncate", "chmod", "renameat2"])
def test_calls_that_fail_anyway_fail_as_they_do(
    programs: dict[str, Path], walls: Walls, call: str
) -> None:
    for path, reason in (("missing", errno.ENOENT), ("no/file", errno.ENOENT),
                         ("file/x", errno.ENOTDIR)):  # fmt: skip
        ended = walls.run([str(programs["static"]), call, path, "new"])
        assert (int(ended.output), ended.refused) == (reason, [])


def test_what_exists_cannot_be_made(programs: dict[str, Path], walls: Walls) -> None:
    for call in MAKES_NAME[1:]:
        ended = walls.run([str(programs["static"]), call, "file", "outside"])
        assert (int(ended.output), ended.refused) == (errno.EEXIST, [])
    ended = walls.run([str(programs["static"]), "made", "file", "file"])
    assert (int(ended.output), ended.refused) == (0, [])


def test_io_uring_is_missing(programs: dict[str, Path], walls: Walls) -> None:
    ended = walls.run([str(programs["static"]), "io_uring_setup", "file", "new"])
    assert int(ended.output) == errno.ENOSYS


@pytest.mark.skipif(platform.machine() != "x86_64", reason="a call of another machine's")
def test_calls_of_a_32_bit_program_are_missing(programs: dict[str, Path], walls: Walls) -> None:
    ended = walls.run([str(programs["static"]), "int 0x80", "file", "new"])
    if ended.status == -signal.SIGSEGV:
        pytest.skip("this kernel runs no 32-bit programs")
    assert int(ended.output) == errno.ENOSYS


def test_metadata_is_safe_from_programs_that_cannot_be_looked_into(walls: Walls) -> None:
    program = (
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None)\n"
        "assert libc.prctl(4, 0) == 0\n"  # PR_SET_DUMPABLE = 4
        f"print(libc.syscall({FCHMOD}, os.open('file', os.O_RDONLY), 0o604))\n"
    )
    ended = walls.run([walls.python, "-c", program])
    assert ended.output == "-1\n"
    assert [path in ("", str(walls.real / "file")) for path, _ in ended.refused] == [True]


def test_a_wall_in_a_wall_is_not_possible(walls: Walls) -> None:
    probe = f"import ctypes; print(ctypes.CDLL({library()._name!r}).plimsoll_wall_is_possible())"
    assert walls.run([walls.python, "-c", probe]).output == f"{-errno.EBUSY}\n"


def test_an_empty_environment_writes_nothing(walls: Walls) -> None:
    ended = walls.run(["/bin/sh", "-c", "env -i PATH=/bin:/usr/bin sh -c 'echo > f'; cat file"])
    assert ended.output == "kept\n"
    # `env -i` drops the preloaded library's variables, but the library gives them to `sh` again. So
    # the library redirects the write, and the wall has nothing to refuse.
    assert ended.refused == []
    ended = walls.run(["/bin/sh", "-c", "echo > f"], layered=False)
    assert [path for path, _ in ended.refused] == [str(walls.real / "f")]


def test_without_the_layer_libcs_own_functions_are_refused(walls: Walls) -> None:
    program = (
        "import os\n"
        "os.environ.pop('LD_PRELOAD')\n"
        "os.environ.pop('PLIMSOLL_SCRATCH')\n"
        "import ctypes\n"
        "ctypes.CDLL(None).system(b'echo > by_system')\n"
    )
    ended = walls.run([walls.python, "-c", program])
    assert [path for path, _ in ended.refused] == [str(walls.real / "by_system")]


def test_a_spawned_programs_relative_file_is_refused(walls: Walls) -> None:
    program = (
        "import os\n"
        "opens = (os.POSIX_SPAWN_OPEN, 1, 'spawned', os.O_WRONLY | os.O_CREAT, 0o600)\n"
        "try:\n"
        "    os.posix_spawn('/bin/echo', ['echo', 'x'], os.environ, file_actions=[opens])\n"
        "except PermissionError:\n"
        "    print('refused')\n"
    )
    ended = walls.run([walls.python, "-c", program])
    assert (ended.output, ended.errors) == ("refused\n", "")
    assert [path for path, _ in ended.refused] == [str(walls.real / "spawned")]


def test_what_the_layer_leaves_alone_is_refused_and_named(walls: Walls) -> None:
    program = (
        "import os\n"
        f"os.symlink('{walls.real}/file', os.environ['TMPDIR'] + '/link')\n"
        "for change in (lambda path: open(path, 'w'), lambda path: os.chmod(path, 0o604)):\n"
        "    try:\n"
        "        change(os.environ['TMPDIR'] + '/link')\n"
        "    except PermissionError:\n"
        "        print('refused')\n"
        "try:\n"
        "    os.chmod('/dev/null', 0o666)\n"
        "except PermissionError:\n"
        "    print('refused')\n"
    )
    ended = walls.run([walls.python, "-c", program])
    assert (ended.output, ended.errors) == ("refused\n" * 3, "")
    file = str(walls.real / "file")
    assert [path for path, _ in ended.refused] == [file, file, "/dev/null"]


def test_what_programs_do_is_permitted(walls: Walls) -> None:
    shared = Path("/dev/shm/plimsoll-wall-kept")
    try:
        ended = walls.run([walls.python, str(Path(__file__).with_name("permitted_writes.py"))])
        assert (ended.errors.replace(warning_of_shared(ended), ""), ended.status) == ("", 0)
        assert ended.refused == []
        names = (walls.scratch / "shared").read_text().splitlines()
        assert len(names) == 2
        assert shared.name in names
    finally:
        shared.unlink(missing_ok=True)


def warning_of_shared(ended: Ended) -> str:
    """Returns the resource tracker's warning about memory that the test leaks on purpose."""
    start = ended.errors.find("/")
    return ended.errors[start:] if "resource_tracker" in ended.errors else ""


def test_calls_that_a_signal_interrupts_are_answered(walls: Walls) -> None:
    program = (
        "import ctypes, signal\n"
        "signal.signal(signal.SIGPROF, lambda *_: None)\n"
        "signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.fopen.restype = ctypes.c_void_p\n"
        "for _ in range(2000):\n"
        "    assert libc.fclose(ctypes.c_void_p(libc.fopen(b'streamed', b'w,ccs=UTF-8'))) == 0\n"
        "signal.setitimer(signal.ITIMER_PROF, 0)\n"
    )
    ended = walls.run([walls.python, "-c", program])
    assert (ended.errors, ended.status, ended.refused) == ("", 0, [])


def test_a_caller_that_dies_is_no_error(programs: dict[str, Path], walls: Walls) -> None:
    script = (
        f"for n in 1 2 3 4 5 6 7 8; do {programs['static']} fchmod file new & kill -9 $!; done; "
        "wait; echo done"
    )
    ended = walls.run(["/bin/sh", "-c", script], layered=False)
    assert ended.output.endswith("done\n")
    assert {path for path, _ in ended.refused} <= {str(walls.real / "file")}
