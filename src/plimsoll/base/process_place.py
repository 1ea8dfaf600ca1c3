"""The host of a process, and its rank in its job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LONGEST_NAME = 255
_MOST_RANKS = 1 << 31


@dataclass(frozen=True)
class ProcessPlace:
    """The host, the rank and the job of a process.

    A job is a group of processes that a launcher, such as torchrun, starts together. A value is
    None if it is unknown. Values about the job are also None if the process belongs to no job.

    Attributes:
        rank: The rank in the job.
        local_rank: The rank among the processes of its host.
        world_size: The number of processes of the job.
        host: The name of the machine.
        job: The job's name.
    """

    rank: int | None
    local_rank: int | None
    world_size: int | None
    host: str | None
    job: str | None = None

    @classmethod
    def from_dict(cls, values: Any) -> ProcessPlace:
        """Makes a place from what `asdict` returned; the values may come from an untrusted file.

        Raises:
            ValueError: If the values do not describe a place.
        """
        if not isinstance(values, dict):
            raise ValueError("a process's place is no dictionary")
        return cls(
            rank=_number(values, "rank"),
            local_rank=_number(values, "local_rank"),
            world_size=_number(values, "world_size"),
            host=_name(values, "host"),
            job=_name(values, "job"),
        )


def _number(values: dict[str, Any], name: str) -> int | None:
    number = values.get(name)
    if number is None or (type(number) is int and 0 <= number < _MOST_RANKS):
        return number
    raise ValueError(f"a process has an impossible {name}")


def _name(values: dict[str, Any], key: str) -> str | None:
    name = values.get(key)
    if name is None or (isinstance(name, str) and len(name) <= LONGEST_NAME and name.isprintable()):
        return name
    raise ValueError(f"a process's {key} has an impossible name")
