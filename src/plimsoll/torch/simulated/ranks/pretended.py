"""Which ranks of a job run; the others are pretended."""

from __future__ import annotations

import os


def pretended_world() -> int | None:
    """How many processes a job has of which this one alone runs; None where others run too."""
    world = os.environ.get("WORLD_SIZE", "")
    is_launched = "TORCHELASTIC_RUN_ID" in os.environ
    return int(world) if world.isdecimal() and int(world) > 1 and not is_launched else None


def running_ranks() -> list[int] | None:
    """The ranks of this job that run, where not all do; as `predict --ranks` has it."""
    text = os.environ.get("PLIMSOLL_RANKS", "")
    return [int(each) for each in text.split(",")] if text else None


def stand_in(place: int, own: int, present: frozenset[int], size: int) -> int:
    """The place that stands for one, in what all of a group give.

    Args:
        place: The one.
        own: This process's.
        present: Those that run.
        size: Of the group.
    """
    if place in present or place == own:
        return place
    return _nearest(place, present, size, own)


def letter_of(sender: int, own: int, present: frozenset[int], size: int) -> tuple[int, int] | None:
    """The letter that stands for one that this rank expects: who sends it, and to whom.

    It goes as far along the group as the one that is expected. None where no rank sends such.

    Args:
        sender: Who would send the one that is expected.
        own: This process's place.
        present: Those that run.
        size: Of the group.
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
    """The nearest, rather one that has a place before and behind it, as `place` mostly does."""
    inner = [each for each in among if 0 < each < size - 1] if 0 < place < size - 1 else []
    if not inner and otherwise is not None:
        return otherwise
    return min(inner or among, key=lambda each: (abs(each - place), each))
