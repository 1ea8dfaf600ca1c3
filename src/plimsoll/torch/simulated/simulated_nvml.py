"""Stands in for NVIDIA's management library (NVML) in programs that open it by `ctypes`.

Programs ask NVML for the cards, their memory and their links before they use CUDA. NVML needs no
CUDA context on a card, and creates none. A query that is not simulated returns the status "not
supported", which real cards return as well.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import partial
from itertools import islice
from traceback import walk_stack
from typing import TYPE_CHECKING, Any

from plimsoll.torch.building.versions import companions
from plimsoll.torch.simulated.library_stand_in import LibraryStandIn, number, pointee

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plimsoll.engine.gpus.profiles import GpuProfile
    from plimsoll.torch.simulated.simulation import Simulation

NAMES = ("libnvidia-ml.so.1", "libnvidia-ml.so")
"""The names of the library's file under Linux."""

_SUCCESS, _INVALID_ARGUMENT, _NOT_SUPPORTED, _NOT_FOUND, _INSUFFICIENT_SIZE = 0, 2, 3, 6, 7
DRIVER = "580.00"
"""The driver version that simulated cards report."""
_FIRST_HANDLE = 0x1000
_P2P_OK, _P2P_NOT_SUPPORTED = 0, 5
_MOST_CALLERS = 6
"""The number of frames that plimsoll searches for the function that asked NVML.

`pynvml` may have several frames between that function and NVML.
"""


def card_uuid(device: int) -> str:
    """Returns the UUID of a simulated card, without the "GPU-" that NVML puts before it.

    Args:
        device: The card's number.
    """
    return f"00000000-0000-0000-0000-{device:012x}"


def nvml_library(simulation: Simulation) -> LibraryStandIn:
    """Returns the object that stands in for NVML.

    Args:
        simulation: The simulated GPUs.
    """
    return LibraryStandIn("nvml", _functions(simulation), lambda _: lambda *_: _NOT_SUPPORTED)


def _functions(simulation: Simulation) -> dict[str, Callable[..., Any]]:
    cards = simulation.profiles

    def of_card(answer: Callable[..., int]) -> Callable[..., int]:
        """Returns a function that takes a card's handle and gives the card's number to `answer`."""

        def answered(handle: Any, *arguments: Any) -> int:
            device = (ctypes.cast(handle, ctypes.c_void_p).value or 0) - _FIRST_HANDLE
            if not 0 <= device < len(cards):
                return _INVALID_ARGUMENT
            return answer(device, *arguments)

        return answered

    by_card = {name: of_card(answer) for name, answer in _card_functions(simulation).items()}
    return {**_system_functions(simulation), **by_card}


def _system_functions(simulation: Simulation) -> dict[str, Callable[..., Any]]:
    """Returns the simulated NVML functions that need no card's handle, each under its name."""
    cards = simulation.profiles

    def handle_by_index(index: Any, handle: Any) -> int:
        return _give_handle(handle, number(index), len(cards))

    def handle_by_uuid(uuid: Any, handle: Any) -> int:
        asked = _text(uuid).removeprefix("GPU-")
        known = [card_uuid(device) for device in range(len(cards))]
        return _give_handle(handle, known.index(asked) if asked in known else -1, len(cards))

    def handle_by_bus(bus: Any, handle: Any) -> int:
        asked = _text(bus).upper()
        known = [bus_id(device) for device in range(len(cards))]
        # Programs write the domain with eight digits, with four, or not at all.
        found = [i for i, each in enumerate(known) if asked in (each, each[4:], each[9:])]
        return _give_handle(handle, found[0] if found else -1, len(cards))

    def cuda_version() -> int:
        major, _, minor = companions(simulation.version).cuda.partition(".")
        return 1000 * int(major) + 10 * int(minor or 0)

    plain: dict[str, Callable[..., Any]] = {
        **dict.fromkeys(("nvmlInit", "nvmlInit_v2", "nvmlShutdown"), lambda: _SUCCESS),
        "nvmlInitWithFlags": lambda flags: _SUCCESS,  # noqa: ARG005
        "nvmlErrorString": lambda status: f"NVML of simulated cards: status {status}".encode(),
        "nvmlSystemGetDriverVersion": partial(_give_text, DRIVER),
        "nvmlSystemGetNVMLVersion": partial(_give_text, f"13.{DRIVER}"),
        "nvmlDeviceGetHandleByUUID": handle_by_uuid,
    }
    for version in ("", "_v2"):
        plain |= {
            f"nvmlDeviceGetCount{version}": lambda count: _give(len(cards), count),
            f"nvmlDeviceGetHandleByIndex{version}": handle_by_index,
            f"nvmlDeviceGetHandleByPciBusId{version}": handle_by_bus,
            f"nvmlSystemGetCudaDriverVersion{version}": lambda to: _give(cuda_version(), to),
        }
    return plain


def _card_functions(simulation: Simulation) -> dict[str, Callable[..., int]]:
    """Returns the simulated NVML functions for one card, each under its name.

    Each takes the card's number where NVML's own function takes the card's handle.
    """
    cards = simulation.profiles

    def memory(device: int, info: Any) -> int:
        if not _only_shows():
            simulation.note_size_read()
        simulation.share_card(device)
        free, total = simulation.card_memory(device)
        filled = pointee(info)
        filled.total, filled.used, filled.free = total, total - free, free
        return _SUCCESS

    def processes(device: int, count: Any, places: Any) -> int:
        running = [os.getpid()] if device in simulation.contexts else []
        room, pointee(count).value = pointee(count).value, len(running)
        if room < len(running):
            return _INSUFFICIENT_SIZE
        for place, process in zip(places or (), running, strict=False):
            own = simulation.machine.gpus[device].dedicated_used_bytes
            place.pid, place.usedGpuMemory = process, own
        return _SUCCESS

    def peer_status(device: int, peer: Any, kind: Any, status: Any) -> int:
        del kind
        other = (ctypes.cast(peer, ctypes.c_void_p).value or 0) - _FIRST_HANDLE
        linked = _are_linked(cards, device, other)
        pointee(status).value = _P2P_OK if linked else _P2P_NOT_SUPPORTED
        return _SUCCESS

    def capability(device: int, major: Any, minor: Any) -> int:
        pointee(major).value, pointee(minor).value = cards[device].compute_capability
        return _SUCCESS

    def pci(device: int, info: Any) -> int:
        filled = pointee(info)
        filled.domain, filled.bus, filled.device = 0, device + 1, 0
        for field in ("busId", "busIdLegacy"):
            if hasattr(filled, field):
                setattr(filled, field, bus_id(device).encode())
        return _SUCCESS

    by_card: dict[str, Callable[..., int]] = {
        "nvmlDeviceGetIndex": _give,
        "nvmlDeviceGetMinorNumber": _give,
        "nvmlDeviceGetNumaNodeId": lambda device, node: _give(0, node),  # noqa: ARG005
        "nvmlDeviceGetName": lambda device, *to: _give_text(cards[device].full_name, *to),
        "nvmlDeviceGetUUID": lambda device, *to: _give_text(f"GPU-{card_uuid(device)}", *to),
        "nvmlDeviceGetCudaComputeCapability": capability,
        "nvmlDeviceGetP2PStatus": peer_status,
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetMemoryInfo_v2": memory,
    }
    for version in ("", "_v2", "_v3"):
        by_card[f"nvmlDeviceGetPciInfo{version}"] = pci
        by_card[f"nvmlDeviceGetComputeRunningProcesses{version}"] = processes
    return by_card


def _only_shows() -> bool:
    """Returns whether `torch.cuda.device_memory_used` asks NVML for a card's memory.

    That function returns only the used bytes, so the program does not learn the card's size.
    """
    callers = islice(walk_stack(sys._getframe(1)), _MOST_CALLERS)
    return any(frame.f_code.co_name == "device_memory_used" for frame, _ in callers)


def _are_linked(cards: Sequence[GpuProfile], device: int, other: int) -> bool:
    """Returns whether NVLink connects two cards."""
    return 0 <= other < len(cards) and min(cards[device].nvlinks, cards[other].nvlinks) > 0


def bus_id(device: int) -> str:
    """Returns the PCI bus ID of a simulated card.

    Args:
        device: The card's number.
    """
    return f"00000000:{device + 1:02X}:00.0"


def _text(argument: Any) -> str:
    text = getattr(argument, "value", argument)
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)


def _give(value: int, to: Any) -> int:
    pointee(to).value = value
    return _SUCCESS


def _give_text(text: str, buffer: Any, length: Any) -> int:
    if len(text) >= number(length):
        return _INSUFFICIENT_SIZE
    buffer.value = text.encode()
    return _SUCCESS


def _give_handle(handle: Any, device: int, count: int) -> int:
    if not 0 <= device < count:
        return _NOT_FOUND if device < 0 else _INVALID_ARGUMENT
    number = ctypes.c_void_p(_FIRST_HANDLE + device)
    ctypes.memmove(handle, ctypes.byref(number), ctypes.sizeof(number))
    return _SUCCESS
