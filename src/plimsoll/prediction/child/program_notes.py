"""What a simulated program says of itself beyond its requests, for the recognisers of causes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from plimsoll.base.watchers import standing_in
from plimsoll.prediction.child.script_ending import line_of_stack
from plimsoll.recordings.analysis.lines import source_line
from plimsoll.recordings.causes.cause import AutocastCache, MathAttention, Notes
from plimsoll.torch.simulated.library import MATH_ATTENTION

if TYPE_CHECKING:
    from types import FrameType

    from plimsoll.recordings.events import Frame
    from plimsoll.torch.simulated.simulation import Simulation


class ProgramNotes:
    """Watches autocast, and collects what the simulated GPU noted."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._caches: dict[int, AutocastCache] = {}

    def install(self, torch: Any) -> None:
        """Hear of the end of every block of autocast."""
        self._simulation.watchers.guarded("autocast's copies", self._install)(torch)

    def _install(self, torch: Any) -> None:
        clear = torch.clear_autocast_cache
        note = self._simulation.watchers.guarded("autocast's copies", self._note)

        def noted() -> None:
            before = self._allocated()
            clear()
            note(before)

        torch.clear_autocast_cache = standing_in(clear, noted)

    def _allocated(self) -> list[int]:
        return [each.memory_allocated() for each in self._simulation.allocators]

    def _note(self, before: list[int]) -> None:
        """Note what was freed with the cache: copies that no graph holds."""
        for device, (was, now) in enumerate(zip(before, self._allocated(), strict=True)):
            known = self._caches.get(device)
            if was > now and (known is None or was - now > known.bytes):
                self._caches[device] = AutocastCache(_line_of(sys._getframe(2)), was - now)

    def of(self, device: int) -> Notes:
        """Return all that was noted, for one device."""
        simulation = self._simulation
        pinned = simulation.library.pinned_statistics()
        return Notes(
            math_attention=_math_attention(simulation),
            autocast_cache=self._caches.get(device),
            pinned_asked_bytes=pinned.asked_bytes.peak,
            pinned_taken_bytes=pinned.allocated_bytes.peak,
            searches=_searches(),
            devices={
                each: simulation.allocators[each].max_memory_allocated()
                for each in simulation.contexts
            },
        )


def _math_attention(simulation: Simulation) -> list[MathAttention]:
    name = simulation.library.name
    return [
        MathAttention(
            name(each.what).removeprefix(MATH_ATTENTION),
            line_of_stack(each.stack) if each.stack else None,
            each.bytes,
        )
        for each in simulation.library.assumptions()
        if name(each.what).startswith(MATH_ATTENTION)
    ]


def _searches() -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and bool(torch.backends.cudnn.benchmark)


def _line_of(frame: FrameType | None) -> str:
    """The program's line that is running, from a frame outwards."""
    frames: list[Frame] = []
    while frame is not None:
        code = frame.f_code
        frames.append((code.co_filename, frame.f_lineno, code.co_qualname))
        frame = frame.f_back
    return source_line(frames)
