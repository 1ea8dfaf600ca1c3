"""What can be recorded: CUDA's allocator under PyTorch, simulated GPUs, an `Allocator` by itself.

A source puts events into a buffer from `start` to `stop`. Its `segments` also puts a `snapshot`
event there, at the very moment that they are of: so what happened before can be told apart from
what happened after, while other threads go on.
"""

from __future__ import annotations

import ctypes
import sys
import warnings
from typing import TYPE_CHECKING, Any, Protocol

from plimsoll import _core
from plimsoll.errors import InputError
from plimsoll.gpus import card_entry
from plimsoll.simulator.snapshot import settings_dict
from plimsoll.tiers.engines import allocator_name
from plimsoll.torch.building.compiler import BRIDGE, load
from plimsoll.torch.building.versions import is_cuda_build

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plimsoll.recordings.events import Frame
    from plimsoll.simulator import Allocator
    from plimsoll.torch.simulated.simulation import Simulation

Segments = dict[int, list[_core.SegmentInfo]]
"""Of each device, by address."""


class Source(Protocol):
    """Something that allocates GPU memory."""

    is_simulated: bool
    """Whether the events' times are those of a simulated clock."""

    def start(self, buffer: _core.EventBuffer, *, stacks: bool) -> None:
        """Put every event from now on into `buffer`.

        Raises:
            InputError: If that is not possible.
        """

    def stop(self) -> None:
        """No event from now on."""

    def segments(self) -> Segments:
        """All memory, and an event in the buffer that says when."""

    def settings(self) -> Mapping[str, Any]:
        """As `allocator_settings` in PyTorch's snapshots, and "allocator", which they are of.

        Under "gpus" they have the cards, for `plimsoll.gpus.recorded_card`, if they have names.
        """

    def frames(self, stack: int) -> list[Frame]:
        """The call stack of an event, by its number."""

    def when_torch_is_there(self, action: Callable[[], None]) -> None:
        """Call `action` once PyTorch, whose memory this is, is imported; never, if it is none's."""


def find_source() -> Source:
    """The GPUs of this process.

    Raises:
        InputError: If it has none.
    """
    simulation = sys.modules.get("plimsoll.torch.simulated.simulation")
    if simulation is not None and simulation.running() is not None:
        return SimulationSource(simulation.running())
    if not is_cuda_build():
        raise InputError(
            "there is nothing to record: the installed PyTorch has no CUDA; "
            "`plimsoll run --simulate H100 --record FILE` needs none"
        )
    import torch

    if torch.cuda.device_count() == 0:
        raise InputError(
            "there is nothing to record: no NVIDIA GPU; "
            "`plimsoll run --simulate H100 --record FILE` needs none"
        )
    return TorchSource(torch)


class TorchSource:
    """PyTorch's CUDA allocator, its own or plimsoll's, through the bridge."""

    is_simulated = False

    def __init__(self, torch: Any) -> None:
        backend = torch.cuda.memory.get_allocator_backend()
        if backend not in ("native", "plimsoll"):
            raise InputError(f"PyTorch's allocator {backend} tells nobody what it does")
        torch.cuda.init()  # before that, there is nobody to follow
        self._torch = torch
        self._library = load(BRIDGE)
        self._has_stacks = False

    def start(self, buffer: _core.EventBuffer, *, stacks: bool) -> None:
        """See `Source.start`."""
        if stacks and self._torch._C._cuda_isHistoryEnabled():
            _warn_of_history("are not recorded")
            stacks = False
        problem = ctypes.create_string_buffer(1024)
        start = self._library.plimsoll_recording_start
        start.argtypes = [
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t
        ]  # fmt: skip
        if start(_core.recorder_api(), buffer.handle, int(stacks), problem, len(problem)) != 0:
            raise InputError(f"PyTorch's allocator: {problem.value.decode(errors='replace')}")
        self._has_stacks = stacks
        if stacks:
            self._watch_history()

    def stop(self) -> None:
        """See `Source.stop`."""
        self._library.plimsoll_recording_stop(int(self._has_stacks))
        if self._has_stacks:
            self._torch._C._cuda_record_memory_history = self._record_memory_history

    def _watch_history(self) -> None:
        """Notice when the program lets PyTorch keep a history, which then gathers stacks."""
        self._record_memory_history = self._torch._C._cuda_record_memory_history

        def record_memory_history(*arguments: Any, **named: Any) -> Any:
            if self._has_stacks:
                self._has_stacks = False
                self._torch._C._cuda_record_memory_history = self._record_memory_history
                _warn_of_history("are not recorded from now on")
            return self._record_memory_history(*arguments, **named)

        self._torch._C._cuda_record_memory_history = record_memory_history

    def segments(self) -> Segments:
        """See `Source.segments`."""
        found: Segments = {}
        for segment in self._torch.cuda.memory._snapshot()["segments"]:
            found.setdefault(segment["device"], []).append(_segment(segment))
        return found

    def settings(self) -> Mapping[str, Any]:
        """See `Source.settings`."""
        settings: dict[str, Any] = self._torch.cuda.memory._snapshot()["allocator_settings"]
        cuda = self._torch.cuda
        cards = [cuda.get_device_properties(device) for device in range(cuda.device_count())]
        return settings | {
            "allocator": allocator_name() or "native",
            "torch_version": str(self._torch.__version__),
            "gpus": [
                card_entry(device, str(card.name), int(card.total_memory))
                for device, card in enumerate(cards)
            ],
        }

    def frames(self, stack: int) -> list[Frame]:
        """See `Source.frames`."""
        return _core.stack_frames(stack)

    def when_torch_is_there(self, action: Callable[[], None]) -> None:
        """See `Source.when_torch_is_there`."""
        action()


def _warn_of_history(what: str) -> None:
    warnings.warn(
        f"call stacks {what}: PyTorch's own memory history gathers them, and it can do so for one "
        "only",
        RuntimeWarning,
        stacklevel=3,
    )


def _segment(segment: dict[str, Any]) -> _core.SegmentInfo:
    return _core.SegmentInfo(
        segment["address"],
        segment["total_size"],
        segment["stream"],
        _core.PoolId(*segment.get("segment_pool_id", (0, 0))),
        segment["segment_type"] == "small",
        segment.get("is_expandable", False),
        0,
        [
            _core.BlockInfo(
                block["address"], block["size"], block.get("requested_size", 0), block["state"]
            )
            for block in segment["blocks"]
        ],
    )


class SimulationSource:
    """The simulated GPUs of this process."""

    is_simulated = True

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._stacks = simulation.site_stacks()

    def start(self, buffer: _core.EventBuffer, *, stacks: bool) -> None:
        """See `Source.start`."""
        self._simulation.record_events(buffer, stacks=stacks)

    def stop(self) -> None:
        """See `Source.stop`."""
        self._simulation.record_events(None, stacks=False)

    def segments(self) -> Segments:
        """See `Source.segments`."""
        return {
            device: _segments_now(allocator)
            for device, allocator in enumerate(self._simulation.allocators)
        }

    def settings(self) -> Mapping[str, Any]:
        """See `Source.settings`."""
        allocator = self._simulation.allocators[0]
        settings = settings_dict(
            allocator.conf, allocator.config, allocator.name, allocator.version
        )
        cards = enumerate(self._simulation.profiles)
        return settings | {
            "gpus": [card_entry(device, card.name, card.total_bytes) for device, card in cards]
        }

    def frames(self, stack: int) -> list[Frame]:
        """See `Source.frames`; a stack's number is that of the site that asked."""
        return self._stacks[stack]

    def when_torch_is_there(self, action: Callable[[], None]) -> None:
        """See `Source.when_torch_is_there`."""
        self._simulation.after_import(action)


class AllocatorSource:
    """An allocator on a simulated GPU, used by itself."""

    is_simulated = True

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator

    def start(self, buffer: _core.EventBuffer, *, stacks: bool) -> None:
        """See `Source.start`."""
        self._kept_stacks = self._allocator._record_stacks
        self._allocator._record_stacks = stacks or self._kept_stacks
        self._allocator._engine.record(buffer)

    def stop(self) -> None:
        """See `Source.stop`."""
        self._allocator._engine.record(None)
        self._allocator._record_stacks = self._kept_stacks
        if not self._kept_stacks:
            self._allocator._engine.set_context(0)

    def segments(self) -> Segments:
        """See `Source.segments`."""
        return {self._allocator.device: _segments_now(self._allocator)}

    def settings(self) -> Mapping[str, Any]:
        """See `Source.settings`."""
        a = self._allocator
        return settings_dict(a.conf, a.config, a.name, a.version)

    def frames(self, stack: int) -> list[Frame]:
        """See `Source.frames`."""
        return self._allocator._stacks[stack]

    def when_torch_is_there(self, action: Callable[[], None]) -> None:
        """See `Source.when_torch_is_there`."""


def _segments_now(allocator: Allocator) -> list[_core.SegmentInfo]:
    segments = allocator._engine.segments()
    allocator._engine.note_snapshot()
    return segments
