"""Renames files by system calls without libc, as libraries in Rust do.

The program renames one file in the main thread, one in a second thread, and one in a process that
a third thread forks.
"""

import ctypes
import errno
import mmap
import os
import signal
import threading
from pathlib import Path

# A function that makes a system call. Its machine code is mov rax, rdi; mov rdi, rsi; mov rsi, rdx;
# mov rdx, rcx; xor r10, r10; syscall; ret.
_CODE = bytes.fromhex("4889f8 4889f7 4889d6 4889ca 4d31d2 0f05 c3")
_RENAME, _OPEN, _FUTEX = 82, 2, 202
_WAIT = 128  # FUTEX_WAIT | FUTEX_PRIVATE_FLAG: no other process uses the futex

memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
memory.write(_CODE)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
call = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long, *[ctypes.c_void_p] * 3)(address)


def name_file(name: str) -> None:
    """Writes a file `unnamed`, and renames it to `name`."""
    Path("unnamed").write_text(name)
    result = call(_RENAME, ctypes.c_char_p(b"unnamed"), ctypes.c_char_p(name.encode()), None)
    assert result == 0, os.strerror(-result)


def in_fork() -> None:
    child = os.fork()
    if child == 0:
        name_file("forked")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status


# Installs a handler that treats SIGSYS as a crash, as LLVM does.
ctypes.CDLL(None).signal(signal.SIGSYS, signal.SIG_DFL)
signal.signal(signal.SIGSYS, lambda *_: os._exit(1))
name_file("first")
threads = [threading.Thread(target=name_file, args=["second"]), threading.Thread(target=in_fork)]
for thread in threads:
    thread.start()
    thread.join()
file = call(_OPEN, ctypes.c_char_p(b"opened"), os.O_WRONLY | os.O_CREAT, 0o600)
assert os.write(file, b"text") == 4
if "scratch" in os.environ.get("LD_PRELOAD", ""):
    # libgomp waits like this, without a timeout. plimsoll's preloaded library adds a short timeout.
    # No thread wakes this thread, so the call times out, and the library makes it return EAGAIN.
    word = ctypes.c_int(7)
    waited = call(_FUTEX, ctypes.cast(ctypes.pointer(word), ctypes.c_void_p), _WAIT, 7)
    assert waited == -errno.EAGAIN, waited
missing = call(_RENAME, ctypes.c_char_p(b"nowhere"), ctypes.c_char_p(b"there"), None)
assert missing == -2, missing
