"""Linux namespaces for a trial: user ids, mounts, and network."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from pathlib import Path

from plimsoll.prediction.trials import kernel

_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1


def enter_namespaces(*, with_network: bool) -> None:
    """Moves this process to new namespaces for user ids, mounts and possibly network.

    Later children of this process are in the same namespaces. Each user and group keeps its id. If
    root calls this function, the user namespace has all ids. If an ordinary user calls it, the
    namespace has only that user and group, and the kernel shows other users' files as files of
    `nobody`.

    Args:
        with_network: Whether the machine's network stays reachable. If not, this process gets a
            new network namespace, in which only loopback works.

    Raises:
        OSError: If this machine does not offer such namespaces.
    """
    maps = _maps()
    ready = os.pipe()
    writer = os.fork()  # a map of several ids must be written from outside the namespace
    if writer == 0:
        os.close(ready[1])
        os.read(ready[0], 1)
        os._exit(_written(maps, os.getppid()))
    try:
        kinds = kernel.NEW_USERS | kernel.NEW_MOUNTS
        kernel.unshare(kinds if with_network else kinds | kernel.NEW_NETWORK)
    finally:
        for end in ready:
            os.close(end)
        _, status = os.waitpid(writer, 0)
    if status != 0:
        raise OSError(os.waitstatus_to_exitcode(status), "the users cannot be mapped")
    kernel.mount("none", Path("/"), None, kernel.PRIVATE | kernel.WITH_ALL_BELOW)
    if not with_network:
        _bring_loopback_up()


def _maps() -> dict[str, str]:
    """Returns the names of files in /proc/PID, and for each file the text to write to it."""
    if os.geteuid() != 0:
        return {
            "setgroups": "deny",
            "uid_map": f"{os.geteuid()} {os.geteuid()} 1",
            "gid_map": f"{os.getegid()} {os.getegid()} 1",
        }
    return {name: _same_numbers(name) for name in ("uid_map", "gid_map")}


def _same_numbers(name: str) -> str:
    """Returns the text of an id map that lets each id keep its number in a new namespace."""
    ranges = [line.split() for line in Path(f"/proc/self/{name}").read_text().splitlines()]
    return "".join(f"{first} {first} {count}\n" for first, _, count in ranges)


def _written(maps: dict[str, str], process: int) -> int:
    """Writes the id maps of a process. Returns 0, or the errno of the failure."""
    try:
        for name, text in maps.items():
            Path(f"/proc/{process}/{name}").write_text(text)
    except OSError as error:
        return error.errno or 1
    return 0


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP))
