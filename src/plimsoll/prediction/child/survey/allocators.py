"""What other settings and other allocators would reserve for the same requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.errors import InputError
from plimsoll.prediction.survey import AllocatorUse
from plimsoll.replays import replay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.recordings.recording import Recording
    from plimsoll.simulator import Allocator

_EXPANDABLE = "expandable_segments:True"


def try_allocators(
    recording: Recording, allocator: Allocator, room: int | None
) -> list[AllocatorUse]:
    """Replay a run under its own settings and others.

    Args:
        recording: The run's requests.
        allocator: The one that served them.
        room: What the program may take; None for all that it asks for.
    """
    own = allocator.conf if allocator.name == "native" else ""
    settings = [(allocator.name, own)]
    if allocator.name == "native":
        if "expandable_segments" not in own:
            settings.append(("native", f"{own},{_EXPANDABLE}" if own else _EXPANDABLE))
        settings.append(("elastic", ""))
    return [use for name, conf in settings for use in _try(recording, allocator, name, conf, room)]


def _try(
    recording: Recording, own: Allocator, name: str, conf: str, room: int | None
) -> Iterator[AllocatorUse]:
    def replayed(memory: int | None) -> AllocatorUse:
        (result,) = replay(
            recording,
            allocator=name,  # type: ignore[arg-type]
            conf=conf if name == "native" else None,
            gpu_memory=memory,
            version=own.version,
        )
        return AllocatorUse(
            name, conf, result.peak_allocated_bytes, result.peak_reserved_bytes, result.fits
        )

    try:
        use = replayed(None)
        if room is not None and use.peak_reserved_bytes > room:
            use = AllocatorUse(
                name,
                conf,
                use.peak_allocated_bytes,
                use.peak_reserved_bytes,
                use.peak_allocated_bytes <= room and replayed(room).fits,
            )
    except InputError:
        return
    yield use
