"""Makes ordinary writes, such as to pipes and temporary files, in a trial run of a script.

In the trial run the kernel refuses writes to real files. It must permit this program's writes.
The program imports nothing of plimsoll, so that any Python of the machine can run it as another
user.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import platform
import shutil
import tempfile
import threading
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path


def permitted() -> None:
    reader, writer = os.pipe()
    with Path(f"/proc/self/fd/{writer}").open("w") as file:
        file.write("through a pipe")
    os.fchmod(writer, 0o600)
    assert os.read(reader, 99) == b"through a pipe"
    Path("/dev/null").write_text("x")
    with tempfile.TemporaryDirectory() as folder:
        inside = Path(folder, "a")
        inside.write_text("x")
        shutil.copy2(inside, Path(folder, "b"))
        os.setxattr(inside, "user.x", b"1")
        os.truncate(inside, 0)
        Path(folder, "b").rename(inside)
    with multiprocessing.Lock(), multiprocessing.Semaphore(3):
        pass
    block = SharedMemory(create=True, size=100)
    kept = SharedMemory("plimsoll-wall-kept", create=True, size=100)
    block.close()
    block.unlink()
    kept.close()
    memory = os.memfd_create("x")
    os.fchmod(memory, 0o600)
    with Path(f"/proc/self/fd/{memory}").open("w") as file:
        file.write("in memory")
    unnamed = os.open(".", os.O_TMPFILE | os.O_RDWR)
    os.write(unnamed, b"x")
    os.fchmod(unnamed, 0o600)
    os.link(f"/proc/self/fd/{unnamed}", "named", src_dir_fd=unnamed, follow_symlinks=True)

    libc = ctypes.CDLL(None, use_errno=True)
    libc.fopen.restype = libc.tmpfile.restype = libc.popen.restype = ctypes.c_void_p
    coded = libc.fopen(b"coded", b"w,ccs=UTF-8")
    streams = (libc.fopen(b"streamed", b"w"), libc.fopen(b"file", b"r+"), coded, libc.tmpfile())
    for stream in streams:
        assert stream
        assert libc.fclose(ctypes.c_void_p(stream)) == 0
    assert libc.system(b"echo x > by_system") == 0
    assert libc.pclose(ctypes.c_void_p(libc.popen(b"echo x > by_popen", b"r"))) == 0
    assert Path("by_system").read_text() == Path("by_popen").read_text() == "x\n"

    opens = (os.POSIX_SPAWN_OPEN, 1, str(Path.cwd() / "spawned"), os.O_WRONLY | os.O_CREAT, 0o600)
    spawned = os.posix_spawn("/bin/echo", ["echo", "x"], os.environ, file_actions=[opens])
    assert os.waitpid(spawned, 0)[1] == 0
    assert Path("spawned").read_text() == "x\n"

    def work(number: int) -> None:
        for _ in range(20):
            Path(f"thread-{number}").write_text(str(number))
            libc.fclose(ctypes.c_void_p(libc.fopen(b"stream-%d" % number, b"a")))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rename_by_raw_call()


def rename_by_raw_call() -> None:
    """Renames a file by raw system calls, as safetensors does in Rust.

    A trial run writes files to its own scratch folder instead of to their real places. A raw call
    must name the file in the scratch folder.
    """
    call = ctypes.CDLL(None, use_errno=True).syscall
    renameat2, fchmodat = (316, 268) if platform.machine() == "x86_64" else (276, 53)
    layer = os.environ["PLIMSOLL_SCRATCH"].splitlines()[0] + f"/files{Path.cwd()}"
    Path("from").write_text("x")
    ours, free = f"{layer}/from".encode(), f"{layer}/to".encode()
    assert call(renameat2, -100, ours, -100, free, 0) == 0
    assert call(fchmodat, -100, free, 0o640) == 0
    assert Path("to").stat().st_mode & 0o777 == 0o640


if __name__ == "__main__":
    permitted()
