"""Detects ranks of a group that make different calls: with NCCL they would wait for ever."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.torch.simulated.ranks.waiting import DeadlockError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Header:
    """A rank's description of its call in one meeting (a collective, or a message between ranks).

    Attributes:
        rank: The rank in the job.
        what: The call, such as "all_reduce".
        agreed: The properties on which all ranks have to agree.
        line: The program's line.
        series: A random number for the meeting; all ranks use the first rank's number.
        read: The number of the group's first meeting whose bytes this rank has not read yet. It has
            read the bytes of all earlier meetings.
    """

    rank: int
    what: str
    agreed: str
    line: str
    series: int
    read: int = 0


def check_agreement(group: str, headers: Mapping[int, Header]) -> None:
    """Compares the calls of the ranks in a meeting.

    Args:
        group: The group's name, for the message.
        headers: The description of each rank's call, by the rank in the group.

    Raises:
        DeadlockError: If two ranks make different calls, or the same call with different sizes.
    """
    first, *others = (headers[place] for place in sorted(headers))
    for other in others:
        is_pair = {first.what, other.what} == {"send", "recv"}
        if first.what == other.what or is_pair:
            if first.agreed == other.agreed:
                continue
            raise DeadlockError(
                f"{_what(first)} with {first.agreed} at {first.line}, and {_what(other)} with "
                f"{other.agreed} at {other.line}: the sizes differ, so on GPUs {group} would hang "
                "or overwrite memory"
            )
        raise DeadlockError(
            f"deadlock: {_what(first)} at {first.line}, while {_what(other)} at {other.line}; "
            f"both are the next of {group}, so on GPUs each would wait for ever"
        )


def _what(header: Header) -> str:
    return f"rank {header.rank} calls {header.what}"
