"""Several machines, looked at at the same time; one that does not answer is a line of its own."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, Protocol

from plimsoll.base.errors import InputError
from plimsoll.base.printable import printable
from plimsoll.integrations.top.metrics_host import MetricsHost
from plimsoll.integrations.top.model import Machine
from plimsoll.integrations.top.ssh_host import SshHost

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_AT_A_TIME = 32
_AGAIN_SECONDS = 30.0
_LONGEST_REASON = 300


class Host(Protocol):
    """A machine that is asked from here.

    Attributes:
        name: The name that people gave it.
        login: The name that ssh takes for it.
    """

    name: str
    login: str

    def look(self) -> Machine:
        """What holds the memory there now; InputError if it does not say so."""

    def write_snapshot(self, pid: int, file: IO[bytes]) -> None:
        """A snapshot of a process there; InputError if it gives none."""


def host_of(name: str, command: str = "plimsoll") -> Host:
    """A host by what people call it.

    Args:
        name: The address of metrics, or what ssh takes.
        command: What plimsoll is called there, for ssh.

    Raises:
        InputError: If it is neither.
    """
    if name.startswith(("http://", "https://")):
        return MetricsHost(name)
    return SshHost(name, command)


class HostsWatch:
    """Looks at all hosts; one that did not answer is left alone for half a minute.

    Args:
        hosts: In the order in which they are shown.
        clock: In seconds; for tests.
    """

    def __init__(self, hosts: Sequence[Host], clock: Callable[[], float] = time.monotonic) -> None:
        self._hosts = {host.name: host for host in hosts}
        self._clock = clock
        self._silent: dict[str, tuple[float, str]] = {}  # since when, and why

    def look_each(self) -> dict[str, Machine | str]:
        """What holds the memory of each host now, or why it does not say so."""
        with ThreadPoolExecutor(min(len(self._hosts), _AT_A_TIME)) as pool:
            return dict(zip(self._hosts, pool.map(self._look_at, self._hosts), strict=True))

    def look(self) -> Machine:
        """All hosts as one machine."""
        found = self.look_each()
        answers = [each for each in found.values() if isinstance(each, Machine)]
        return Machine(
            gpus=tuple(gpu for machine in answers for gpu in machine.gpus),
            notes=tuple(note for machine in answers for note in machine.notes),
            silent_hosts=tuple((host, why) for host, why in found.items() if isinstance(why, str)),
        )

    def write_snapshot(self, host: str, pid: int, file: IO[bytes]) -> None:
        """A snapshot of a process of a host.

        Raises:
            InputError: If it gives none.
        """
        try:
            self._hosts[host].write_snapshot(pid, file)
        except InputError as error:
            raise InputError(f"{host}: {error}") from None

    def login(self, host: str) -> str:
        """Returns the name that ssh takes for a host, also for one that is asked for metrics."""
        return self._hosts[host].login

    def _look_at(self, name: str) -> Machine | str:
        since, why = self._silent.get(name, (-_AGAIN_SECONDS, ""))
        if why and self._clock() - since < _AGAIN_SECONDS:
            return why
        self._silent.pop(name, None)
        try:
            return self._hosts[name].look()
        except Exception as error:  # also a fault of plimsoll's: the other hosts are shown
            known = isinstance(error, InputError)
            why = str(error) if known else f"plimsoll fails at its answer: {error!r}"
            why = printable(why)[:_LONGEST_REASON]
            self._silent[name] = (self._clock(), why)
            return why
