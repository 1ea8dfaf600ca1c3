"""Ranks that meet, and do not do the same: with NCCL they would wait for ever."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.torch.simulated.ranks.waiting import DeadlockError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Header:
    """What a rank says of what it gives.

    Attributes:
        rank: Of the job.
        what: The call, such as "all_reduce".
        agreed: What all have to agree on.
        line: Where the program is.
        series: A number that is drawn for the meeting; the first rank's counts.
        read: It has read what all gave in the group's meetings before this one.
    """

    rank: int
    what: str
    agreed: str
    line: str
    series: int
    read: int = 0


def check_agreement(group: str, headers: Mapping[int, Header]) -> None:
    """Compare what the ranks of a meeting do.

    Args:
        group: The group's name, for people.
        headers: By place in the group.

    Raises:
        DeadlockError: If two do not do the same, or not with as much.
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
