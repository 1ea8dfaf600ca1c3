"""Acts on a shown process: shows its environment, writes a snapshot, ends it."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING

from plimsoll.base.errors import InputError
from plimsoll.base.files import NewFile
from plimsoll.base.telemetry.identity import start_ticks
from plimsoll.base.telemetry.requests import request_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.integrations.top.hosts import HostsWatch
    from plimsoll.integrations.top.model import ProcessUse

_PROC = Path("/proc")
_OF_GPUS = re.compile(r"^(CUDA|PYTORCH|TORCH|PLIMSOLL|NCCL|NVIDIA|XLA|TF_)")
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|(^|_)(API_?)?KEYS?(_|$)|(^|_)PWD_")


@dataclass(frozen=True)
class ChosenProcess:
    """A process, identified by its process id and start time: Linux reuses process ids.

    Attributes:
        pid: The process id.
        started: See `identity.start_ticks`.
    """

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ChosenProcess:
        """Returns the process that has this process id now.

        Raises:
            InputError: If there is no such process.
        """
        started = start_ticks(pid)
        if started is None:
            raise InputError(f"process {pid} has ended")
        return cls(pid, started)

    def end(self, how: signal.Signals) -> None:
        """Sends the process a signal, unless another process has its id by now.

        Raises:
            InputError: If the process has ended, or belongs to another user.
        """
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            raise InputError(f"process {self.pid} has ended") from None
        try:
            if start_ticks(self.pid) != self.started:
                raise InputError(f"process {self.pid} has ended")
            signal.pidfd_send_signal(handle, how)
        except ProcessLookupError:
            raise InputError(f"process {self.pid} has ended") from None
        except PermissionError:
            raise InputError(f"process {self.pid} is another user's") from None
        finally:
            os.close(handle)


def environment(pid: int) -> list[tuple[str, str]]:
    """Returns the variables that a process was started with, those about GPUs first.

    If a variable's name marks it as secret, the value is "(hidden)", because screens are often
    shared.

    Raises:
        InputError: If the process has ended, or belongs to another user.
    """
    try:
        text = (_PROC / str(pid) / "environ").read_bytes().decode(errors="replace")
    except PermissionError:
        raise InputError(f"the environment of process {pid} is another user's") from None
    except OSError:
        raise InputError(f"process {pid} has ended") from None
    return sorted(_variables(text), key=lambda each: (_OF_GPUS.match(each[0]) is None, each[0]))


def _variables(text: str) -> Iterator[tuple[str, str]]:
    for entry in text.split("\0"):
        name, is_one, value = entry.partition("=")
        if is_one:
            yield name, "(hidden)" if value and _SECRET.search(name.upper()) else value


def write_snapshot(
    use: ProcessUse, folder: Path, *, host: str | None = None, hosts: HostsWatch | None = None
) -> Path:
    """Asks a process for a snapshot, writes it to a new file, and returns the path.

    Args:
        use: The process.
        folder: The folder of the file.
        host: The host of the process, if that is another machine.
        hosts: The object that asks the other machines; needed if `host` is given.

    Raises:
        InputError: If plimsoll does not run in the process, the process does not answer, or the
            file cannot be written.
    """
    path = snapshot_path(use, folder)
    with NewFile(path) as file:
        send_snapshot(use.pid, file, host=host, hosts=hosts)
    return path


def snapshot_path(use: ProcessUse, folder: Path) -> Path:
    """Returns the path of a new file whose name contains the rank.

    `plimsoll explain` reads the rank from the names of the files in a folder. If no rank is known,
    the name contains the process id instead.
    """
    rank = None if use.process is None else use.process.place.rank
    who = str(use.pid) if rank is None else f"rank{rank}"
    numbered = (folder / f"plimsoll-{who}-{number}.pickle" for number in count(1))
    return next(each for each in numbered if not each.exists())


def send_snapshot(pid: int, file: IO[bytes], *, host: str | None, hosts: HostsWatch | None) -> None:
    """Asks a process for a snapshot, and writes it to an open file. See `write_snapshot`."""
    if host is None or hosts is None:
        file.write(request_snapshot(pid))
    else:
        hosts.write_snapshot(host, pid, file)
