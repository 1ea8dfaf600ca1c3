"""Stands in for NCCL in programs that open it by `ctypes`, without torch.distributed.

plimsoll simulates a communicator of such a program as a process group of torch.distributed, which
takes as much memory. The communicator's ranks meet in one of PyTorch's stores. One rank makes
NCCL's unique id, which here contains the store's port, and the program gives the id to the other
ranks.
"""

from __future__ import annotations

import ctypes
import struct
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.cuda_collectives import NCCL_VERSION
from plimsoll.torch.simulated.cuda_missing import not_simulated
from plimsoll.torch.simulated.library_stand_in import LibraryStandIn, number, pointee
from plimsoll.torch.simulated.ranks.pretended import running_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.torch.simulated.ranks.process_groups import ProcessGroups
    from plimsoll.torch.simulated.simulation import Simulation

NAMES = ("libnccl.so.2", "libnccl.so")
"""The names of the library's file under Linux."""

_SUCCESS = 0
_ID_BYTES = 128
_ADDRESS = "127.0.0.1"
_PORT = struct.Struct("=16sH")
_MARK = b"simulated NCCL"
_KINDS = (
    *("int8", "uint8", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
)
"""PyTorch's names of NCCL's data types; the index is NCCL's number."""
_WAYS = ("SUM", "PRODUCT", "MAX", "MIN", "AVG")
"""PyTorch's names of NCCL's reductions; the index is NCCL's number."""


def nccl_library(simulation: Simulation, groups: ProcessGroups) -> LibraryStandIn:
    """Returns the object that stands in for NCCL.

    Args:
        simulation: The GPUs of this process.
        groups: Makes the backends through which the ranks communicate.
    """
    opened = _Opened(simulation, groups)
    functions: dict[str, Callable[..., Any]] = {
        "ncclGetErrorString": lambda status: f"NCCL of simulated cards: {number(status)}".encode(),
        "ncclGetVersion": _give_version,
        "ncclGetUniqueId": opened.give_id,
        "ncclCommInitRank": opened.begin,
        "ncclCommDestroy": opened.end,
        "ncclCommAbort": opened.end,
        "ncclAllReduce": opened.all_reduce,
        "ncclReduce": opened.reduce,
        "ncclBroadcast": opened.broadcast,
        "ncclAllGather": opened.all_gather,
        "ncclReduceScatter": opened.reduce_scatter,
        "ncclSend": opened.send,
        "ncclRecv": opened.receive,
        # A simulated send does not wait for its receiver, so the calls of a group can run one after
        # the other.
        **dict.fromkeys(("ncclGroupStart", "ncclGroupEnd"), lambda: _SUCCESS),
    }
    return LibraryStandIn("nccl", functions, lambda name: not_simulated(name, "libnccl"))


@dataclass(frozen=True)
class _Communicator:
    """One rank's part of a communicator."""

    backend: Any
    rank: int
    size: int
    device: int


class _Opened:
    """NCCL's functions for communicators, and the communicators of this process."""

    def __init__(self, simulation: Simulation, groups: ProcessGroups) -> None:
        self._simulation = simulation
        self._groups = groups
        self._stores: dict[int, Any] = {}
        self._made: dict[int, _Communicator] = {}

    def give_id(self, to: Any) -> int:
        from torch.distributed import TCPStore

        store = TCPStore(_ADDRESS, 0, is_master=True, wait_for_workers=False)
        self._stores[store.port] = store
        written = _PORT.pack(_MARK, store.port).ljust(_ID_BYTES, b"\0")
        ctypes.memmove(ctypes.byref(pointee(to)), written, _ID_BYTES)
        return _SUCCESS

    def begin(self, to: Any, size: Any, unique: Any, rank: Any) -> int:
        import torch

        place, count = number(rank), number(size)
        store, members = self._meet(bytes(unique), place, count)
        backend = self._groups.communicator(store, place, members)
        device = torch.cuda.current_device()
        backend.eager_connect_single_device(torch.device("cuda", device))
        key = len(self._made) + 1
        self._made[key] = _Communicator(backend, place, count, device)
        pointee(to).value = key
        return _SUCCESS

    def _meet(self, unique: bytes, place: int, count: int) -> tuple[Any, list[int]]:
        """Returns the store of a communicator, and its members' ranks in the job."""
        from torch.distributed import TCPStore
        from torch.testing._internal.distributed.fake_pg import FakeStore

        if self._simulation.pretended_world is not None:
            return FakeStore(), list(range(count))
        _, port = _PORT.unpack_from(unique)
        store = self._stores.get(port) or TCPStore(_ADDRESS, port, is_master=False)
        self._stores[port] = store
        if running_ranks() is not None:
            return store, list(range(count))
        own = self._simulation.rank
        store.set(f"rank of {place}", str(place if own is None else own))
        return store, [int(store.get(f"rank of {other}")) for other in range(count)]

    def end(self, communicator: Any) -> int:
        self._made[number(communicator)].backend.shutdown()
        return _SUCCESS

    def all_reduce(
        self, given: Any, to: Any, count: Any, kind: Any, way: Any, of: Any, stream: Any
    ) -> int:
        from torch._C._distributed_c10d import AllreduceOptions

        made = self._made[number(of)]
        with _on(stream, made.device):
            out = _copied(given, to, count, kind, made.device)
            _finish(made.backend.allreduce([out], _options(AllreduceOptions, way)))
        return _SUCCESS

    def reduce(
        self, given: Any, to: Any, count: Any, kind: Any, way: Any, root: Any, of: Any, stream: Any
    ) -> int:
        from torch._C._distributed_c10d import ReduceOptions

        made = self._made[number(of)]
        options = _options(ReduceOptions, way, root)
        with _on(stream, made.device):
            target = to if number(root) == made.rank else given
            out = _copied(given, target, count, kind, made.device)
            _finish(made.backend.reduce([out], options))
        return _SUCCESS

    def broadcast(
        self, given: Any, to: Any, count: Any, kind: Any, root: Any, of: Any, stream: Any
    ) -> int:
        from torch._C._distributed_c10d import BroadcastOptions

        made = self._made[number(of)]
        source = given if number(root) == made.rank else to
        with _on(stream, made.device):
            out = _copied(source, to, count, kind, made.device)
            _finish(made.backend.broadcast([out], _options(BroadcastOptions, None, root)))
        return _SUCCESS

    def all_gather(self, given: Any, to: Any, count: Any, kind: Any, of: Any, stream: Any) -> int:
        from torch._C._distributed_c10d import AllgatherOptions

        made = self._made[number(of)]
        with _on(stream, made.device):
            part = _tensor(given, number(count), kind, made.device)
            whole = _tensor(to, made.size * number(count), kind, made.device)
            _finish(made.backend._allgather_base(whole, part, _options(AllgatherOptions)))
        return _SUCCESS

    def reduce_scatter(
        self, given: Any, to: Any, count: Any, kind: Any, way: Any, of: Any, stream: Any
    ) -> int:
        from torch._C._distributed_c10d import ReduceScatterOptions

        made = self._made[number(of)]
        with _on(stream, made.device):
            whole = _tensor(given, made.size * number(count), kind, made.device)
            part = _tensor(to, number(count), kind, made.device)
            options = _options(ReduceScatterOptions, way)
            _finish(made.backend._reduce_scatter_base(part, whole, options))
        return _SUCCESS

    def send(self, given: Any, count: Any, kind: Any, peer: Any, of: Any, stream: Any) -> int:
        made = self._made[number(of)]
        with _on(stream, made.device):
            letter = _tensor(given, number(count), kind, made.device)
            _finish(made.backend.send([letter], number(peer), 0))
        return _SUCCESS

    def receive(self, to: Any, count: Any, kind: Any, peer: Any, of: Any, stream: Any) -> int:
        made = self._made[number(of)]
        with _on(stream, made.device):
            letter = _tensor(to, number(count), kind, made.device)
            _finish(made.backend.recv([letter], number(peer), 0))
        return _SUCCESS


def _give_version(to: Any) -> int:
    major, minor, patch = NCCL_VERSION
    pointee(to).value = 10_000 * major + 100 * minor + patch
    return _SUCCESS


def _on(stream: Any, device: int) -> Any:
    """Returns a context in which PyTorch queues work on the stream that a call names."""
    import torch

    if number(stream) == torch.cuda.current_stream(device).cuda_stream:
        return nullcontext()
    return torch.cuda.stream(torch.cuda.ExternalStream(number(stream), device))


def _options(make: Any, way: Any = None, root: Any = None) -> Any:
    """Returns a collective's options.

    If PyTorch's options have `asyncOp`, this function sets `asyncOp` to False. The collective then
    runs on the current stream.
    """
    from torch.distributed import ReduceOp

    options = make()
    if hasattr(options, "asyncOp"):
        options.asyncOp = False
    if way is not None:
        options.reduceOp = getattr(ReduceOp, _WAYS[number(way)])
    if root is not None:
        options.rootRank = number(root)
    return options


def _finish(work: Any) -> None:
    if work is not None:
        work.wait()


class _Memory:
    """Memory of a card in the form from which PyTorch makes a tensor."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 2,
        }


def _tensor(address: Any, count: int, kind: Any, device: int) -> Any:
    """Returns a tensor over memory that the program has allocated."""
    import torch

    of = getattr(torch, _KINDS[number(kind)])
    on = torch.device("cuda", device)
    if count == 0:
        return torch.empty(0, dtype=of, device=on)
    return torch.as_tensor(_Memory(number(address), count * of.itemsize), device=on).view(of)


def _copied(given: Any, to: Any, count: Any, kind: Any, device: int) -> Any:
    """Copies the values at `given` to `to`, and returns a tensor over `to`."""
    out = _tensor(to, number(count), kind, device)
    if number(given) != number(to):
        out.copy_(_tensor(given, number(count), kind, device))
    return out
