"""What the trees of CUDA graphs ask of the allocator: `mode="reduce-overhead"` of torch.compile.

A graph keeps its addresses. Once it was replayed, the blocks of its pool are free for the allocator
though results lie in them; before another graph is recorded, a checkpoint makes them live again, as
they were when the graph's recording ended.
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
    """The live blocks of a pool: torch._C._cuda_CUDAAllocator_AllocatorState."""

    pool: _Pool
    blocks: list[_Block]


def graph_tree_functions(
    simulation: Simulation, adopt: Callable[[int, int], None]
) -> dict[str, Any]:
    """The names that `torch._C` has for them.

    Args:
        simulation: The GPUs.
        adopt: Called with the address and the device of a live block that no storage owns, so that
            it can be freed by its address.
    """
    lib = simulation.library.lib
    lib.plimsoll_lend.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int]
    lib.plimsoll_refuse_storage.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    for name in ("owns", "own", "disown", "let_go"):
        getattr(lib, f"plimsoll_{name}").argtypes = [ctypes.c_void_p]

    def engine(device: int) -> _core.Engine:
        return simulation.allocators[device].engine

    def live_blocks(device: int, pool: _Pool) -> list[_Block]:
        return [
            _Block(block.address, block.size, segment.stream)
            for segment in engine(device).segments()
            if (segment.pool.first, segment.pool.second) == tuple(pool)
            for block in segment.blocks
            if block.state == "active_allocated"
        ]

    def are_live(device: int, pool: _Pool, expected: set[int]) -> bool:
        return {block.address for block in live_blocks(device, pool)} == set(expected)

    def get_state(device: int, pool: _Pool) -> PoolState:
        return PoolState((pool[0], pool[1]), live_blocks(device, pool))

    def set_state(device: int, state: PoolState, stale: list[int], owners: list[int]) -> None:
        for block in live_blocks(device, state.pool):
            engine(device).free(block.address)
        for storage in stale:
            lib.plimsoll_disown(storage)
        for block in state.blocks:
            engine(device).allocate_at(block.address, block.size, block.stream, *state.pool)
        unowned = {block.address for block in state.blocks}
        for storage in owners:
            lib.plimsoll_own(storage)
            unowned.discard(int(lib.plimsoll_address(storage)))
        for address in unowned:
            adopt(address, device)

    def lent_storage(address: int, device: Any, size: int) -> Any:
        import torch

        storage = torch.empty(0, dtype=torch.uint8, device=device).untyped_storage()
        lib.plimsoll_lend(storage._cdata, address, size, storage.device.index)
        return storage

    def tensor_in(metadata: dict[str, Any], storage: Any) -> Any:
        import torch

        place = (metadata["storage_offset"], metadata["size"], metadata["stride"])
        empty = torch.empty(0, dtype=metadata["dtype"], device=storage.device)
        return empty.set_(storage, *place)

    def refuse_access(tensor: Any, why: str) -> None:
        import torch

        torch.ops.plimsoll.refuse_access(tensor, why)

    lib.plimsoll_address.argtypes = [ctypes.c_void_p]
    lib.plimsoll_address.restype = ctypes.c_uint64
    return {
        "_cuda_CUDAAllocator_AllocatorState": PoolState,
        "_cuda_checkPoolLiveAllocations": are_live,
        "_cuda_getCheckpointState": get_state,
        "_cuda_setCheckpointPoolState": set_state,
        "_construct_storage_from_data_pointer": lent_storage,
        "_construct_CUDA_Tensor_From_Storage_And_Metadata": tensor_in,
        "_has_Standard_Deleter": lambda storage: bool(lib.plimsoll_owns(storage)),
        "_free_And_Remove_DeleterFn": lambda storage: lib.plimsoll_let_go(storage),
        "_set_storage_access_error_msg": refuse_access,
        "_set_storage_data_ptr_access_error_msg": lambda storage, why: lib.plimsoll_refuse_storage(
            storage, why.encode()
        ),
    }
