"""Finds the process that a text names.

The text is a process id, as in `4711`, or a list of conditions, as in `rank=3,job=llama`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError
from plimsoll.base.printable import printable

if TYPE_CHECKING:
    from plimsoll.integrations.top.model import Machine, ProcessUse

_MOST_TOLD = 8


@dataclass(frozen=True)
class Choice:
    """The conditions that a process must meet; None accepts any value.

    Attributes:
        pid: The process id.
        rank: The rank in its job.
        job: The job's name.
    """

    pid: int | None = None
    rank: int | None = None
    job: str | None = None

    @classmethod
    def of(cls, text: str) -> Choice:
        """Parses a choice.

        The text is a process id, or a list of conditions separated by commas. A condition is
        rank=N, job=NAME or pid=N; each may be given once. A job alone is not enough.

        Raises:
            InputError: If the text has neither form.
        """
        if _is_number(text):
            return cls(pid=int(text))
        given: dict[str, str] = {}
        for part in text.split(","):
            key, _, value = part.partition("=")
            if key not in ("pid", "rank", "job") or not value or key in given:
                break
            given[key] = value
        else:
            pid, rank = given.get("pid"), given.get("rank")
            if (pid or rank) and all(each is None or _is_number(each) for each in (pid, rank)):
                return cls(
                    None if pid is None else int(pid),
                    None if rank is None else int(rank),
                    given.get("job"),
                )
        raise InputError(
            f"{printable(text)!r} names no process: give a PID, such as 4711, or its rank, "
            "such as rank=3 or rank=3,job=NAME"
        )

    def find(self, machine: Machine) -> tuple[str | None, ProcessUse]:
        """Finds the one process that meets the conditions.

        Returns:
            The process's host, or None for this machine, and the process.

        Raises:
            InputError: If no process matches, or several do.
        """
        ours = {
            (gpu.host, use.pid): use
            for gpu in machine.gpus
            for use in gpu.processes
            if use.process is not None
        }
        found = {key: use for key, use in ours.items() if self._is_meant(use)}
        if len(found) == 1:
            (((host, _), use),) = found.items()
            return host, use
        if found:
            raise InputError(f"several processes are meant: {_told(found)}")
        silent = "".join(f"; {host} does not answer: {why}" for host, why in machine.silent_hosts)
        if not ours:
            none = "plimsoll runs in no process here; plimsoll run SCRIPT starts one"
            raise InputError(printable(f"{none}{silent}"))
        raise InputError(
            printable(f"there is no such process; plimsoll runs in {_told(ours)}{silent}")
        )

    def _is_meant(self, use: ProcessUse) -> bool:
        assert use.process is not None
        place = use.process.place
        pairs = ((self.pid, use.pid), (self.rank, place.rank), (self.job, place.job))
        return all(wanted is None or wanted == found for wanted, found in pairs)


def _told(uses: dict[tuple[str | None, int], ProcessUse]) -> str:
    """Lists the first few of these processes, for an error message."""
    told = [_process(host, use) for (host, _), use in list(uses.items())[:_MOST_TOLD]]
    more = [f"{len(uses) - _MOST_TOLD} more"] if len(uses) > _MOST_TOLD else []
    return printable("; ".join(told + more))


def _process(host: str | None, use: ProcessUse) -> str:
    place = None if use.process is None else use.process.place
    words = [f"process {use.pid}"]
    if place is not None and place.rank is not None:
        words.append(f"rank={place.rank}")
    if place is not None and place.job is not None:
        words.append(f"job={place.job}")
    return " ".join(words) + ("" if host is None else f" on {host}")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 12
