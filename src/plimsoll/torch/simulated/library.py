"""The loaded library of the simulated GPU: its C interface, called through ctypes.

The structures, enumerations and texts here are also declared in C++. The description of each one
names the C++ file in parentheses. csrc/python/memory_layout.cpp returns the layout of the C++
structures and enumerations. plimsoll uses the library only if this layout equals the one in Python.
"""

from __future__ import annotations

import ctypes
import functools
import re
import threading
from array import array
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from plimsoll import _core
from plimsoll.base.errors import InputError
from plimsoll.base.units import MiB
from plimsoll.recordings.origin import PHASES, ROLES
from plimsoll.torch.building.compiler import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from plimsoll.engine.gpus.card_files import Searches

_HERE = Path(__file__).parent

SIMULATED_GPU = Recipe(
    name="simulated-cuda",
    purpose="the simulated GPU",
    sources=_HERE / "csrc",
    # With these flags, the compiler reads only those of PyTorch's headers that the library needs.
    flags=("-O1", "-DAT_PER_OPERATOR_HEADERS", f"-I{_HERE}/csrc/lean", f"-I{_HERE}/csrc"),
    # In a CUDA build libtorch depends on libtorch_cuda, so libtorch_cuda is loaded before
    # plimsoll's library. PyTorch then registers its kernels first, and plimsoll's kernels replace
    # them.
    libraries=("torch", "torch_cpu", "c10"),
    needs_cuda=False,
    check=f"{__package__}.check",
    tables=_HERE / "data",
)

_NOT_MEASURED = (-1,) * 4
"""Means that no sizes of workspaces were measured (csrc/rules/measured_convolutions.h)."""
_WITHOUT_END = 2 ** (8 * ctypes.sizeof(ctypes.c_size_t)) - 1
_Row = TypeVar("_Row", bound=ctypes.Structure)

BEYOND_BUDGET = "plimsoll did not compute its result, which would take too much time or memory"
"""The report's text for a result that was not computed (kBeyondBudget of csrc/device/runtime.h)."""
SIZE_OF_UNKNOWN = "the size of its result depends on data that plimsoll did not compute"
"""The report's text for a size that is not known (kSizeOfUnknown of csrc/device/runtime.h)."""
MATH_ATTENTION = "attention runs the math kernel: "
"""The beginning of a note that attention runs PyTorch's math kernel; the reason follows.

The C++ code calls this constant kMathAttention (csrc/rules/attention_choice.cpp).
"""
UNDECIDED_CHECK = (
    "plimsoll assumes that this kernel's check passes: it did not compute the checked data"
)
"""The report's text for a check of unknown data (kUndecidedCheck of csrc/device/runtime.h)."""
READS_WITHOUT_CONTENTS = "plimsoll keeps no contents of large host tensors; the script read zeros"
"""The report's text for a read of a host tensor without contents.

It is kReadsWithoutContents of csrc/device/runtime.h.
"""
DEVICE_ASSERT = "CUDA error: device-side assert triggered"
"""CUDA's error if a kernel's check fails (kDeviceAssert of csrc/device/runtime.h)."""
VALUES = ("automatic", "real", "none")
"""The names of the settings that decide which values plimsoll computes.

A setting's index is its number in C++ (Values of csrc/values/budget.h).
"""
UNKNOWN = ("balanced", "most", "least")
"""The names of the settings that decide how plimsoll chooses values that it does not know.

A setting's index is its number in C++ (Unknown of csrc/values/description.h).
"""


class DeviceProperties(ctypes.Structure):
    """A GPU's properties that csrc/rules needs (DeviceProperties of csrc/device/runtime.h)."""

    _fields_ = [
        ("multiprocessors", ctypes.c_int32),
        ("major", ctypes.c_int32),
        ("minor", ctypes.c_int32),
        ("max_threads_per_multiprocessor", ctypes.c_int32),
        ("bytes_per_ns", ctypes.c_double),
        ("flops_per_ns", ctypes.c_double),
        ("tensor_flops_per_ns", ctypes.c_double),
        ("copy_bytes_per_ns", ctypes.c_double),
    ]


_CLOCK_TIMES = (
    *("ends_ns", "compute_ends_ns", "no_copies_ends_ns"),
    *("busy_ns", "compute_ns", "no_copies_ns", "collective_ns", "network_ns", "host_ns"),
)


class Clock(ctypes.Structure):
    """The times of a device's work so far, in ns (Clock of csrc/device/runtime.h)."""

    _fields_ = [
        *((name, ctypes.c_double) for name in _CLOCK_TIMES),
        ("kernels", ctypes.c_uint64),
    ]


class Site(ctypes.Structure):
    """The call site of a request for memory (Site of csrc/device/runtime.h).

    Its role and phase are indices into `plimsoll.recordings.origin.ROLES` and `PHASES`.
    """

    _fields_ = [
        ("stack", ctypes.c_uint32),
        ("operation", ctypes.c_uint32),
        ("role", ctypes.c_uint8),
        ("phase", ctypes.c_uint8),
        ("grad_enabled", ctypes.c_bool),
        ("has_grad_fn", ctypes.c_bool),
    ]


class Assumption(ctypes.Structure):
    """An assumption for the report, and how often it was made (csrc/device/runtime.h)."""

    _fields_ = [
        ("stack", ctypes.c_uint32),
        ("operation", ctypes.c_uint32),
        ("what", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("bytes", ctypes.c_uint64),
    ]


class UncertainMemory(ctypes.Structure):
    """A kernel's temporary memory whose size is known only as a range (csrc/device/runtime.h)."""

    _fields_ = [
        ("allocations", ctypes.c_uint64),
        ("frees", ctypes.c_uint64),
        ("stream", ctypes.c_uint64),
        ("kind", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("least", ctypes.c_uint64),
        ("most", ctypes.c_uint64),
        ("device", ctypes.c_int32),
        ("reserved", ctypes.c_uint32),
    ]


class Counter(ctypes.Structure):
    """A counter as in PyTorch's memory statistics (Counter of csrc/device/pinned.h)."""

    _fields_ = [(name, ctypes.c_int64) for name in ("current", "peak", "allocated", "freed")]


class PinnedStatistics(ctypes.Structure):
    """Statistics of pinned memory (PinnedStatistics of csrc/device/pinned.h)."""

    _fields_ = [
        (name, Counter)
        for name in (
            *("allocations", "active_requests", "allocated_bytes", "active_bytes"),
            "asked_bytes",
        )
    ]


class StackTime(ctypes.Structure):
    """The total time of a call stack's kernels and copies (StackTime of csrc/device/runtime.h)."""

    _fields_ = [("ns", ctypes.c_double)]


class HostAccount(ctypes.Structure):
    """The simulation's effect on host memory (HostAccount of csrc/device/host_account.h)."""

    _fields_ = [(name, ctypes.c_int64) for name in ("absent", "most_absent", "extra")]


STRUCTURES: tuple[type[ctypes.Structure], ...] = (
    DeviceProperties,
    Clock,
    StackTime,
    Site,
    Assumption,
    UncertainMemory,
    Counter,
    PinnedStatistics,
    HostAccount,
)
ENUMERATIONS = {"Role": ROLES, "Phase": PHASES, "Values": VALUES, "Unknown": UNKNOWN}


def _type(of: Any) -> str:
    """Returns a type's name as in csrc/python/memory_layout.cpp: `u4` is a 4-byte unsigned int."""
    if issubclass(of, ctypes.Structure):
        kind = "s"
    elif of._type_ in "fd":
        kind = "f"
    else:
        kind = "i" if of._type_ in "bhilq" else "u"
    return f"{kind}{ctypes.sizeof(of)}"


def layout() -> list[str]:
    """Returns the layout of structures and enumerations, in the text form of `plimsoll_layout`.

    `plimsoll_layout` is the C++ function that describes the same types.
    """
    lines = []
    for structure in STRUCTURES:
        fields = [
            f"{name}={_type(of)}@{getattr(structure, name).offset}"
            for name, of, *_ in structure._fields_
        ]
        size = ctypes.sizeof(structure)
        lines.append(f"{structure.__name__} of {size} bytes: {' '.join(fields)}")
    for name, values in ENUMERATIONS.items():
        numbered = [f"{value}={number}" for number, value in enumerate(values)]
        lines.append(f"{name}: {' '.join(numbered)}")
    return lines


def _check_layout(lib: ctypes.CDLL) -> None:
    """Compares the layout of structures and enumerations in Python and in the library.

    Raises:
        InputError: If they differ.
    """
    lib.plimsoll_layout.restype = ctypes.c_char_p
    for theirs, ours in zip_longest(lib.plimsoll_layout().decode().splitlines(), layout()):
        if theirs != ours:
            raise InputError(
                "the library of the simulated GPU belongs to another build of plimsoll; delete it "
                f"from the cache (it has {theirs or 'nothing'}, where {ours or 'nothing'} is "
                "expected)"
            )


class Library:
    """The library of the simulated GPU. A process loads it once, before it imports PyTorch.

    Raises:
        InputError: If another version of plimsoll built the library.
    """

    def __init__(self, lib: ctypes.CDLL) -> None:
        _check_layout(lib)
        self.lib = lib
        lib.plimsoll_current_stream.restype = ctypes.c_int64
        lib.plimsoll_set_capturing.restype = ctypes.c_uint64
        lib.plimsoll_limit_pinned.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
        lib.plimsoll_replay.argtypes = [ctypes.c_uint64]
        lib.plimsoll_forget_capture.argtypes = [ctypes.c_uint64]
        lib.plimsoll_captured_nodes.argtypes = [ctypes.c_uint64]
        lib.plimsoll_captured_nodes.restype = ctypes.c_uint64
        lib.plimsoll_set_stream.argtypes = [ctypes.c_int, ctypes.c_int64]
        lib.plimsoll_name.restype = lib.plimsoll_failure.restype = ctypes.c_char_p
        lib.plimsoll_convolutions.restype = ctypes.c_char_p
        lib.plimsoll_set_blas_workspace_bytes.argtypes = [ctypes.c_int, ctypes.c_int64]
        lib.plimsoll_blas_workspace_bytes.restype = ctypes.c_uint64
        lib.plimsoll_no_such_device.restype = ctypes.c_char_p
        for rows in ("sites", "assumptions"):
            copy = getattr(lib, f"plimsoll_copy_{rows}")
            copy.restype = ctypes.c_size_t
            copy.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        lib.plimsoll_copy_stack_times.restype = ctypes.c_size_t
        lib.plimsoll_copy_stack_times.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
        lib.plimsoll_pinned_written_bytes.restype = ctypes.c_uint64
        lib.plimsoll_registered_written_bytes.restype = ctypes.c_uint64
        lib.plimsoll_account_host_in.argtypes = [ctypes.c_void_p]
        lib.plimsoll_pin.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        lib.plimsoll_unpin.argtypes = [ctypes.c_void_p]

    def start(
        self,
        version: tuple[int, int],
        engines: list[int],
        gpus: list[int],
        properties: list[DeviceProperties],
    ) -> None:
        """Gives the library the engine (the allocator), GPU and properties of each device."""
        count = len(engines)
        interfaces = (_core.engine_api(), _core.device_api(), _core.recorder_api())
        number = version[0] * 100 + version[1]
        status = self.lib.plimsoll_start(
            *(ctypes.c_void_p(interface) for interface in interfaces),
            number,
            count,
            (ctypes.c_void_p * count)(*engines),
            (ctypes.c_void_p * count)(*gpus),
            (DeviceProperties * count)(*properties),
        )
        if status != 0:
            raise InputError(
                "the cached library belongs to another build of plimsoll; delete it from the cache"
            )

    def call_back(
        self,
        first_use: Callable[[int], None],
        load: Callable[[int, int], None],
        out_of_memory: Callable[[int, int], None],
        is_in_open_loop: Callable[[], bool],
        is_tested: Callable[[], bool],
        waits_for_ever: Callable[[int], bool],
    ) -> None:
        """Sets the functions that the library calls back.

        If one of them raises, for example when Ctrl-C interrupts it, the program raises the
        exception later, in the same thread.

        Args:
            first_use: Called with a device before its first use.
            load: Called with a device and an index into CONTEXT_PARTS when the process loads that
                part of the context.
            out_of_memory: Called with a device and the size of a request that fails on it.
            is_in_open_loop: Returns whether the program is in a `while` loop.
            is_tested: Returns whether the program tests the value that it reads now, as in an `if`.
            waits_for_ever: Called with the number of the call stack at which the program waits for
                a value that never comes. Returns whether to stop the program.
        """
        # The library holds no references, so this object keeps the functions alive.
        self._callbacks = (
            first_use, load, out_of_memory, is_in_open_loop, is_tested, waits_for_ever,
        )  # fmt: skip
        self.lib.plimsoll_set_callbacks(*map(ctypes.py_object, self._callbacks))

    def exchange_by(self, exchange: Callable[[bytes], bytes]) -> None:
        """Sets the function by which ranks exchange bytes.

        csrc/collectives/exchange.cpp calls it.
        """
        self._exchange = exchange  # keeps it alive for the library
        self.lib.plimsoll_set_exchange(ctypes.py_object(exchange))

    def set_values(self, values: str, unknown: str, seed: int) -> None:
        """Sets which values are computed (`VALUES`) and how unknown ones are chosen (`UNKNOWN`)."""
        self.lib.plimsoll_set_values(
            VALUES.index(values), UNKNOWN.index(unknown), ctypes.c_uint64(seed)
        )

    def set_convolutions(
        self,
        device: int,
        convolutions: Mapping[str, tuple[int, int, int]],
        searches: Mapping[str, Searches],
    ) -> None:
        """Passes to the library the measured sizes of cuDNN's workspaces (see `CardFile`).

        The sizes were measured on a card of the kind that `device` simulates.
        """
        for words in convolutions.keys() | searches.keys():
            firsts = convolutions.get(words, _NOT_MEASURED[:3])
            searched = searches.get(words, (_NOT_MEASURED,) * 3)
            for number, (first, sizes) in enumerate(zip(firsts, searched, strict=True)):
                self.lib.plimsoll_set_measured_workspaces(
                    device, words.encode(), number, *map(ctypes.c_int64, (first, *sizes))
                )

    def convolutions(self) -> list[str]:
        """Returns a description of each convolution that the program ran."""
        return list(self.lib.plimsoll_convolutions().decode().splitlines())

    def end_with(self, exception: type[BaseException]) -> None:
        """Sets the exception that the library raises in the main thread to stop the program."""
        self._exception = exception  # keeps it alive for the library
        self.lib.plimsoll_set_ending(
            ctypes.c_ulong(threading.main_thread().ident or 0), ctypes.py_object(exception)
        )

    def bound_events(self, most: int, reached: Callable[[], None]) -> None:
        """Calls `reached` and stops the program after `most` events.

        A request for memory is one event, and a free is two.
        """
        self._bound = reached  # keeps it alive for the library
        self.lib.plimsoll_bound_events(ctypes.c_uint64(most), ctypes.py_object(reached))

    def replace_engine(self, device: int, engine: int) -> None:
        """Replaces the engine of a device; the program must not have used the device yet."""
        self.lib.plimsoll_replace_engine(device, ctypes.c_void_p(engine))

    def install(self) -> None:
        """Registers the simulated kernels. Call it once `import torch` is done."""
        self.lib.plimsoll_install()

    def no_such_device(self, index: int) -> str:
        """Returns CUDA's error for a missing device, with advice on how to simulate the device."""
        return str(self.lib.plimsoll_no_such_device(index).decode())

    def name(self, number: int) -> str:
        """Returns the name that the library has stored under a number."""
        return str(self.lib.plimsoll_name(number).decode())

    def failure(self) -> tuple[str, int] | None:
        """Returns the message of a kernel's failed check, and the number of the call stack.

        Returns None if no check failed.
        """
        stack = ctypes.c_uint32()
        why = self.lib.plimsoll_failure(ctypes.byref(stack))
        return None if why is None else (why.decode(), stack.value)

    def sites(self) -> list[Site]:
        """Returns all call sites so far; a site's number is its index."""
        return _read(self.lib.plimsoll_copy_sites, Site)

    def assumptions(self) -> list[Assumption]:
        """Returns all assumptions so far."""
        return _read(self.lib.plimsoll_copy_assumptions, Assumption)

    def uncertain_memory(self) -> list[UncertainMemory]:
        """Returns an entry for each request of uncertain size that a kernel made."""
        return _read(self.lib.plimsoll_copy_uncertain_memory, UncertainMemory)

    def limit_pinned(self, conf: str) -> None:
        """Applies PyTorch's allocator settings to the pool of page-locked memory."""
        self.lib.plimsoll_limit_pinned(
            _megabytes(conf, "pinned_max_round_threshold_mb"),
            _megabytes(conf, "pinned_max_cached_size_mb"),
        )

    def pinned_statistics(self) -> PinnedStatistics:
        """Returns the statistics of pinned memory."""
        statistics = PinnedStatistics()
        self.lib.plimsoll_pinned_statistics(ctypes.byref(statistics))
        return statistics

    @contextmanager
    def contents_kept(self) -> Iterator[None]:
        """Within the context, large host tensors that this thread makes have memory for values.

        Outside it, the simulation gives large host tensors no memory.
        """
        self.lib.plimsoll_keep_contents(1)
        try:
            yield
        finally:
            self.lib.plimsoll_keep_contents(0)

    def host_account(self) -> HostAccount:
        """Returns the simulation's effect on host memory.

        Also resets the peak `most_absent` to the current value of `absent`.
        """
        account = HostAccount()
        self.lib.plimsoll_read_host(ctypes.byref(account))
        return account

    def account_host_in(self, account: HostAccount) -> None:
        """Makes the library keep the simulation's effect on host memory in `account`.

        `account` lies in shared memory, which must stay mapped.
        """
        self.lib.plimsoll_account_host_in(ctypes.addressof(account))

    def clock(self, device: int) -> Clock:
        """Returns the times of a device's work so far."""
        clock = Clock()
        self.lib.plimsoll_clock(device, ctypes.byref(clock))
        return clock

    def stack_times(self, device: int) -> Sequence[float]:
        """Returns each call stack's total time: the time in ns of the stack's kernels and copies.

        A stack's number is its index in the result. The time of a backward operation is added to
        the stack of its forward operation.
        """
        copy = functools.partial(self.lib.plimsoll_copy_stack_times, device)
        return array("d", bytes(_rows(copy, StackTime)))


def _read(copy: Any, kind: type[_Row]) -> list[_Row]:
    """Returns the rows that a C function copies out, as a list."""
    return list(_rows(copy, kind))


def _rows(copy: Any, kind: type[_Row]) -> ctypes.Array[_Row]:
    """Returns the rows that a C function copies out; other threads may add rows meanwhile."""
    rows = (kind * 0)()
    while (count := copy(rows, len(rows))) > len(rows):
        rows = (kind * count)()
    return rows


def _megabytes(conf: str, key: str) -> int:
    """Returns the size in bytes that `conf` sets for `key`; `_WITHOUT_END` if it sets none."""
    found = re.findall(rf"{key}\s*:\s*(\d+)", conf)
    return int(found[-1]) * MiB if found else _WITHOUT_END
