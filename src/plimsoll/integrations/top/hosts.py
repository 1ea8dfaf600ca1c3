"""Asks several machines in parallel for the state of their GPUs.

The screen names each machine that does not answer.
"""

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
    """A machine that plimsoll asks over the network for the state of its GPUs.

    Attributes:
        name: The name that the user gave.
        login: The name to write after `ssh` to log in on this machine.
    """

    name: str
    login: str

    def look(self) -> Machine:
        """Returns the machine's state. Raises InputError if the machine does not send it."""

    def write_snapshot(self, pid: int, file: IO[bytes]) -> None:
        """Writes a snapshot of a process on the machine. Raises InputError if that fails."""


def host_of(name: str, command: str = "plimsoll") -> Host:
    """Makes a host from the name that the user gave.

    Args:
        name: The http:// or https:// address at which a process serves metrics; or a host that
            ssh can reach.
        command: The command that ssh runs on that machine to start plimsoll.

    Raises:
        InputError: If the name is neither a valid address nor a valid ssh host.
    """
    if name.startswith(("http://", "https://")):
        return MetricsHost(name)
    return SshHost(name, command)


class HostsWatch:
    """Asks all hosts; skips a host for half a minute after it did not answer.

    Args:
        hosts: The hosts in display order.
        clock: A function that returns seconds; tests replace it.
    """

    def __init__(self, hosts: Sequence[Host], clock: Callable[[], float] = time.monotonic) -> None:
        self._hosts = {host.name: host for host in hosts}
        self._clock = clock
        # For each host that did not answer when last asked: the time of that failure, and why.
        self._silent: dict[str, tuple[float, str]] = {}

    def look_each(self) -> dict[str, Machine | str]:
        """Returns each host's state, or the reason why there is none."""
        with ThreadPoolExecutor(min(len(self._hosts), _AT_A_TIME)) as pool:
            return dict(zip(self._hosts, pool.map(self._look_at, self._hosts), strict=True))

    def look(self) -> Machine:
        """Asks all hosts. Returns their GPUs as one machine."""
        found = self.look_each()
        answers = [each for each in found.values() if isinstance(each, Machine)]
        return Machine(
            gpus=tuple(gpu for machine in answers for gpu in machine.gpus),
            notes=tuple(note for machine in answers for note in machine.notes),
            silent_hosts=tuple((host, why) for host, why in found.items() if isinstance(why, str)),
        )

    def is_silent(self) -> bool:
        """Returns whether none of the hosts answered when they were asked last."""
        return len(self._silent) == len(self._hosts)

    def write_snapshot(self, host: str, pid: int, file: IO[bytes]) -> None:
        """Writes a snapshot of a process of a host.

        Raises:
            InputError: If the host gives no snapshot.
        """
        try:
            self._hosts[host].write_snapshot(pid, file)
        except InputError as error:
            raise InputError(f"{host}: {error}") from None

    def login(self, host: str) -> str:
        """Returns the name to write after `ssh` to log in on a host.

        For a host that the user gave as an address, returns the host part of that address: node1
        for http://node1:9400.
        """
        return self._hosts[host].login

    def _look_at(self, name: str) -> Machine | str:
        since, why = self._silent.get(name, (-_AGAIN_SECONDS, ""))
        if why and self._clock() - since < _AGAIN_SECONDS:
            return why
        self._silent.pop(name, None)
        try:
            return self._hosts[name].look()
        except Exception as error:
            # An InputError says why the host gave no valid answer. Any other exception is a fault
            # in plimsoll; it is caught so that the screen still shows the other hosts.
            known = isinstance(error, InputError)
            why = str(error) if known else f"plimsoll fails at its answer: {error!r}"
            why = printable(why)[:_LONGEST_REASON]
            self._silent[name] = (self._clock(), why)
            return why
