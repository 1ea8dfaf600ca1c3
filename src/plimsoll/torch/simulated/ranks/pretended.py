"""Determines which ranks of a job run, and which are only pretended.

No process runs for a pretended rank. plimsoll assumes that it does the same as a running rank near
it. A place is a rank in a group.
"""

from __future__ import annotations

import os


def pretended_world() -> int | None:
    """Returns a job's number of processes if this process alone runs; otherwise None."""
    world = os.environ.get("WORLD_SIZE", "")
    is_launched = "TORCHELASTIC_RUN_ID" in os.environ
    return int(world) if world.isdecimal() and int(world) > 1 and not is_launched else None


def running_ranks() -> list[int] | None:
    """Returns the ranks that `predict --ranks` runs; None if all ranks run."""
    text = os.environ.get("PLIMSOLL_RANKS", "")
    return [int(each) for each in text.split(",")] if text else None


def stand_in(place: int, own: int, present: frozenset[int], size: int) -> int:
    """Returns the place of the rank whose contribution plimsoll uses for the rank at `place`.

    If the rank runs, this is its own place. If the rank is pretended, it is the place of a running
    rank.

    Args:
        place: The rank's place.
        own: This process's place.
        present: The places of the ranks that run.
        size: The group's size.
    """
    if place in present or place == own:
        return place
    return _nearest(place, present, size, own)


def letter_of(sender: int, own: int, present: frozenset[int], size: int) -> tuple[int, int] | None:
    """Returns the sender and the receiver of the message that this rank reads.

    If the expected sender runs, this rank reads the expected message. If the expected sender is
    pretended, this rank reads a message that another running rank sends over the same distance.
    The distance is the receiver's place minus the sender's. Returns None if the group has no
    receiver at this distance from another running rank.

    Args:
        sender: The sender of the expected message.
        own: This process's place.
        present: The places of the ranks that run.
        size: The group's size.
    """
    if sender in present:
        return sender, own
    way = own - sender
    fit = frozenset(each for each in present if each != own and 0 <= each + way < size)
    if not fit:
        return None
    chosen = _nearest(sender, fit, size, None)
    return chosen, chosen + way


def _nearest(place: int, among: frozenset[int], size: int, otherwise: int | None) -> int:
    """Returns the place in `among` that replaces `place`.

    The inner places of a group are all except the first and the last. If `place` is inner, the
    nearest inner place in `among` replaces it. If `place` is not inner, or `among` has no inner
    place, `otherwise` replaces it. If `otherwise` is None, the nearest place in `among` does.
    """
    inner = [each for each in among if 0 < each < size - 1] if 0 < place < size - 1 else []
    if not inner and otherwise is not None:
        return otherwise
    return min(inner or among, key=lambda each: (abs(each - place), each))
