"""Has the allocator's functions for CUDA graph trees.

torch.compile(mode="reduce-overhead") records such trees.

Each replay of a graph writes its results to the same blocks of the graph's pool. After a replay the
allocator counts these blocks as free, although they hold results. When PyTorch has recorded
a graph, it therefore saves a checkpoint: the pool's live blocks. PyTorch restores the checkpoint
before it records another graph.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll import _core
    from plimsoll.torch.simulated.simulation import Simulation

_Pool = tuple[int, int]


@dataclass(frozen=True)
class _Block:
    address: int
    size: int
    stream: int


@dataclass(frozen=True)
class PoolState:
    """The live blocks of a pool; stands in for `_cuda_CUDAAllocator_AllocatorState`."""

    pool: _Pool
    blocks: list[_Block]


def graph_tree_functions(
    simulation: Simulation, adopt: Callable[[int, int], None]
) -> dict[str, Any]:
    """Returns the members of `torch._C` for the trees of CUDA graphs, by name.

    Args:
        simulation: The GPUs.
        adopt: A function that is called for each live block that no storage owns, with the block's
            address and device. After the call, PyTorch can free the block by its address.
    """
    lib = simulation.library.lib
    _declare(lib)
    checkpoints, storages = _Checkpoints(simulation, adopt), _Storages(lib)
    return {
        "_cuda_CUDAAllocator_AllocatorState": PoolState,
        "_cuda_checkPoolLiveAllocations": checkpoints.are_live,
        "_cuda_getCheckpointState": checkpoints.state,
        "_cuda_setCheckpointPoolState": checkpoints.restore,
        "_construct_storage_from_data_pointer": storages.lend,
        "_construct_CUDA_Tensor_From_Storage_And_Metadata": _tensor_in,
        "_has_Standard_Deleter": storages.owns_memory,
        "_free_And_Remove_DeleterFn": storages.let_go,
        "_set_storage_access_error_msg": _refuse_access,
        "_set_storage_data_ptr_access_error_msg": storages.refuse_access,
    }


def _declare(lib: ctypes.CDLL) -> None:
    lib.plimsoll_lend.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int]
    lib.plimsoll_refuse_storage.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    for name in ("owns", "own", "disown", "let_go", "address"):
        getattr(lib, f"plimsoll_{name}").argtypes = [ctypes.c_void_p]
    lib.plimsoll_address.restype = ctypes.c_uint64


class _Checkpoints:
    """Saves and restores the live blocks of graphs' pools."""

    def __init__(self, simulation: Simulation, adopt: Callable[[int, int], None]) -> None:
        self._allocators, self._lib = simulation.allocators, simulation.library.lib
        self._adopt = adopt

    def _engine(self, device: int) -> _core.Engine:
        return self._allocators[device].engine

    def _live_blocks(self, device: int, pool: _Pool) -> list[_Block]:
        return [
            _Block(block.address, block.size, segment.stream)
            for segment in self._engine(device).segments()
            if (segment.pool.first, segment.pool.second) == tuple(pool)
            for block in segment.blocks
            if block.state == "active_allocated"
        ]

    def are_live(self, device: int, pool: _Pool, expected: set[int]) -> bool:
        """Returns whether exactly the blocks at these addresses are live in a pool."""
        return {block.address for block in self._live_blocks(device, pool)} == set(expected)

    def state(self, device: int, pool: _Pool) -> PoolState:
        return PoolState((pool[0], pool[1]), self._live_blocks(device, pool))

    def restore(self, device: int, state: PoolState, stale: list[int], owners: list[int]) -> None:
        """Frees all live blocks of a pool, then allocates the saved blocks at their old addresses.

        Args:
            device: The device.
            state: The pool and its saved blocks.
            stale: The storages that lose their blocks.
            owners: The storages that own blocks of the state. `adopt` gets all other blocks.
        """
        engine = self._engine(device)
        for block in self._live_blocks(device, state.pool):
            engine.free(block.address)
        for storage in stale:
            self._lib.plimsoll_disown(storage)
        for block in state.blocks:
            engine.allocate_at(block.address, block.size, block.stream, *state.pool)
        unowned = {block.address for block in state.blocks}
        for storage in owners:
            self._lib.plimsoll_own(storage)
            unowned.discard(int(self._lib.plimsoll_address(storage)))
        for address in unowned:
            self._adopt(address, device)


class _Storages:
    """Makes and changes storages over memory that graphs keep for their results."""

    def __init__(self, lib: ctypes.CDLL) -> None:
        self._lib = lib

    def lend(self, address: int, device: Any, size: int) -> Any:
        """Returns a storage at an address; the graph still owns the memory."""
        import torch

        storage = torch.empty(0, dtype=torch.uint8, device=device).untyped_storage()
        self._lib.plimsoll_lend(storage._cdata, address, size, storage.device.index)
        return storage

    def owns_memory(self, storage: int) -> bool:
        return bool(self._lib.plimsoll_owns(storage))

    def let_go(self, storage: int) -> None:
        """Frees a storage's block, but not the storage."""
        self._lib.plimsoll_let_go(storage)

    def refuse_access(self, storage: int, why: str) -> None:
        """Makes later uses of a storage's pointer raise an error with the text `why`."""
        self._lib.plimsoll_refuse_storage(storage, why.encode())


def _tensor_in(metadata: dict[str, Any], storage: Any) -> Any:
    import torch

    place = (metadata["storage_offset"], metadata["size"], metadata["stride"])
    empty = torch.empty(0, dtype=metadata["dtype"], device=storage.device)
    return empty.set_(storage, *place)


def _refuse_access(tensor: Any, why: str) -> None:
    import torch

    torch.ops.plimsoll.refuse_access(tensor, why)
