"""Recognises a program whose live blocks fit the card, while its free memory is in pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.base.units import format_size
from plimsoll.recordings.causes.cause import Cause

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_VARIED = "varied_sizes"


@dataclass(frozen=True)
class Way:
    """Another allocator, or other settings, in which a replay tried the program.

    Attributes:
        name: The setting or the command, as in a sentence.
        setting: The setting as text to copy; "" for a command.
        bytes: The memory of the card that the program takes; the least that it needs if it does not
            fit.
        fits: Whether the program fits the card.
    """

    name: str
    setting: str
    bytes: int
    fits: bool


@dataclass(frozen=True)
class Pieces:
    """The memory of a card on which a program does not fit, in bytes.

    Attributes:
        total_bytes: The whole card.
        live_bytes: The most that live blocks need, with the memory outside the allocator.
        needed_bytes: The least memory of a card on which the program fits.
        ways: The tried allocators and settings.
    """

    total_bytes: int
    live_bytes: int
    needed_bytes: int
    ways: Sequence[Way]


def fragments(pieces: Pieces, causes: Iterable[Cause]) -> Cause | None:
    """Returns the cause if the live blocks fit the card, and says which way makes the program fit.

    The program needs more than the card has, so free memory in pieces takes the rest. `causes` are
    the causes that recognisers found: a call whose sizes vary belongs into the sentence.
    """
    if pieces.live_bytes > pieces.total_bytes:
        return None
    helping = [way for way in pieces.ways if way.fits]
    varied = next((each for each in causes if each.name == _VARIED), None)
    named = helping or pieces.ways
    least = min((way.bytes for way in named), default=pieces.needed_bytes)
    return Cause(
        name="fragments",
        sentence=f"what is live at the peak fits, {format_size(pieces.live_bytes)} of "
        f"{format_size(pieces.total_bytes)}; too much is free memory in pieces that later requests "
        f"do not fit{_by_whom(varied)}",
        change=", or ".join(_advice(way) for way in named),
        bytes=pieces.needed_bytes - pieces.live_bytes,
        line=None if varied is None else varied.line,
        patch=next((way.setting for way in helping if way.setting), ""),
        saves_bytes=pieces.needed_bytes - least if named else None,
        serves_failed_requests=bool(helping) if named else None,
    )


def with_fragments(causes: Iterable[Cause], pieces: Pieces) -> list[Cause]:
    """Adds the cause `fragments`, in the place of `varied_sizes`.

    It comes first if a way makes the program fit and memory does not grow much. Otherwise it
    comes after the causes that say what the program itself could change.
    """
    found = list(causes)
    cause = fragments(pieces, found)
    if cause is None:
        return found
    others = [each for each in found if each.name != _VARIED]
    grows = any(each.grows_much(pieces.live_bytes) for each in others)
    return [cause, *others] if cause.serves_failed_requests and not grows else [*others, cause]


def _by_whom(varied: Cause | None) -> str:
    """Returns which sizes vary, as the recogniser of varied sizes says it."""
    return "" if varied is None else f", as {varied.sentence.rpartition(': ')[2]}"


def _advice(way: Way) -> str:
    needs = "takes" if way.fits else "needs"
    return f"{way.name}, which {needs} {format_size(way.bytes)}"
