"""The events of the CUDA allocator that PyTorch uses: its own or plimsoll's.

The bridge, a C++ library, records them.
"""

from __future__ import annotations

import ctypes
import warnings
from typing import TYPE_CHECKING, Any

from plimsoll import _core
from plimsoll.base.errors import InputError
from plimsoll.engine.current import allocator_name
from plimsoll.engine.gpus.recorded_card import card_entry
from plimsoll.recordings.origin import Origin
from plimsoll.torch.building.compiler import load
from plimsoll.torch.live.bridge import BRIDGE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plimsoll.engine.recorder.event_source import Segments
    from plimsoll.recordings.events import Frame


# The bridge gives each request a number (csrc/recorder.cpp). Its `_BITS` low bits hold autograd's
# state at the request; the higher bits hold the number of the call stack.
_RECORDS, _IN_BACKWARD, _BITS = 1, 2, 3


class TorchEvents:
    """Records the events of the CUDA allocator that PyTorch uses, its own or plimsoll's."""

    is_simulated = False

    def __init__(self, torch: Any) -> None:
        backend = torch.cuda.memory.get_allocator_backend()
        if backend not in ("native", "plimsoll"):
            raise InputError(f"PyTorch's allocator {backend} tells nobody what it does")
        torch.cuda.init()  # without CUDA there is no allocator to track
        self._torch = torch
        self._library = load(BRIDGE)
        self._has_stacks = False

    def start(self, buffer: _core.EventBuffer, *, stacks: bool) -> None:
        """See `EventSource.start`."""
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
        """See `EventSource.stop`."""
        self._library.plimsoll_recording_stop(int(self._has_stacks))
        if self._has_stacks:
            self._torch._C._cuda_record_memory_history = self._record_memory_history

    def _watch_history(self) -> None:
        """Warns the user when the program turns on PyTorch's memory history.

        From then on PyTorch gathers call stacks for its history, and no longer for plimsoll.
        """
        self._record_memory_history = self._torch._C._cuda_record_memory_history

        def record_memory_history(*arguments: Any, **named: Any) -> Any:
            if self._has_stacks:
                self._has_stacks = False
                self._torch._C._cuda_record_memory_history = self._record_memory_history
                _warn_of_history("are not recorded from now on")
            return self._record_memory_history(*arguments, **named)

        self._torch._C._cuda_record_memory_history = record_memory_history

    def segments(self) -> Segments:
        """See `EventSource.segments`."""
        found: Segments = {}
        for segment in self._torch.cuda.memory._snapshot()["segments"]:
            found.setdefault(segment["device"], []).append(_segment(segment))
        return found

    def settings(self) -> Mapping[str, Any]:
        """See `EventSource.settings`."""
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

    def limits(self) -> dict[int, int | None]:
        """See `EventSource.limits`."""
        cuda = self._torch.cuda
        return {
            device: _limit(
                cuda.get_per_process_memory_fraction(device),
                cuda.get_device_properties(device).total_memory,
            )
            for device in range(cuda.device_count())
        }

    def frames(self, stack: int) -> list[Frame]:
        """See `EventSource.frames`.

        plimsoll puts a frame before the call stack. This frame says whether the request came from
        the forward or the backward pass, and whether autograd was recording operations.
        """
        phase = "backward" if stack & _IN_BACKWARD else "forward"
        origin = Origin(phase, keeps_graph=bool(stack & _RECORDS))
        return [origin.frame(), *_core.stack_frames(stack >> _BITS)]

    def when_torch_is_there(self, action: Callable[[], None]) -> None:
        """See `EventSource.when_torch_is_there`."""
        action()


def _limit(fraction: float, total_bytes: int) -> int | None:
    """Returns the limit in bytes; PyTorch derives the fraction from it, so the product is exact."""
    return None if fraction >= 1 else round(fraction * total_bytes)


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
