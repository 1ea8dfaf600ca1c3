"""Asks another machine over ssh: runs `plimsoll top` there, as the user who logs in."""

from __future__ import annotations

import re
import shlex
from io import BytesIO
from typing import IO

from plimsoll.base.errors import InputError
from plimsoll.base.printable import printable
from plimsoll.integrations.top.bounded import run_bounded
from plimsoll.integrations.top.model import Machine
from plimsoll.integrations.top.remote_json import machine_from_json

_NAME = re.compile(r"(ssh://)?[A-Za-z0-9_\[][A-Za-z0-9_.@:\[\]-]{0,254}")
_CONNECT_SECONDS = 5
_LOOK_SECONDS = 15.0
_SNAPSHOT_SECONDS = 600.0
_MOST_LOOK_BYTES = 4 << 20
_MOST_SNAPSHOT_BYTES = 16 << 30
_NO_SUCH_COMMAND = 127
_LONGEST_REASON = 200


class SshHost:
    """A machine reached over ssh.

    Args:
        name: A host in ssh's configuration, user@host, or ssh://user@host:port.
        command: The command that runs plimsoll there.

    Raises:
        InputError: If the name is not a valid host.
    """

    def __init__(self, name: str, command: str = "plimsoll") -> None:
        if not _NAME.fullmatch(name):
            raise InputError(
                f"{printable(name)!r} is no host: give a name for ssh, such as user@node1, or the "
                "address of metrics, such as http://node1:9400"
            )
        self.name = self.login = name
        self._command = command

    def look(self) -> Machine:
        """Returns the machine's state.

        Raises:
            InputError: If the answer is invalid or late.
        """
        found = BytesIO()
        self._run(["top", "--json"], found, _LOOK_SECONDS, _MOST_LOOK_BYTES)
        return machine_from_json(found.getvalue(), self.name)

    def write_snapshot(self, pid: int, file: IO[bytes]) -> None:
        """Asks a process on the machine for a snapshot of its memory.

        Raises:
            InputError: If the process gives no snapshot.
        """
        asked = ["top", "--snapshot", str(pid), "--output", "-"]
        self._run(asked, file, _SNAPSHOT_SECONDS, _MOST_SNAPSHOT_BYTES)

    def _run(self, verb: list[str], into: IO[bytes], seconds: float, most_bytes: int) -> None:
        options = ["-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_SECONDS}"]
        there = shlex.join([self._command, *verb])
        status, complaint = run_bounded(
            ["ssh", *options, "--", self.name, there],
            into,
            timeout_seconds=seconds,
            most_bytes=most_bytes,
        )
        if status == _NO_SUCH_COMMAND:
            raise InputError(f"it has no command {self._command!r}; --remote says where it is")
        if status != 0:
            lines = [line.strip() for line in complaint.splitlines() if line.strip()]
            reason = lines[-1] if lines else f"ssh ended with status {status}"
            raise InputError(printable(reason.removeprefix("plimsoll: "))[:_LONGEST_REASON])
