"""Symmetric memory: a buffer on each rank's card, which the other ranks' kernels read and write.

The rules are those of torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemory.cu. The buffer and
the signals after it come from the driver, not from PyTorch's allocator. Each rank maps the other
ranks' buffers. A rank requests only two tables from PyTorch's allocator: the addresses of the
buffers, and those of the signals. plimsoll does not compute the values that kernels write to the
buffers.
"""

from __future__ import annotations

import math
import os
import weakref
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.cuda_missing import not_simulated
from plimsoll.torch.simulated.libraries.operations import Operation, simulate_operation

if TYPE_CHECKING:
    from types import ModuleType

    from plimsoll.torch.simulated.simulation import Simulation

_WHERE = "_SymmetricMemory"
_ADDRESS_BYTES = 8
_MULTICAST_MAJOR, _LINKS_OF_SWITCH = 9, 12
"""A card can multicast with at least this major compute capability and this many NVLink links."""
_WITHOUT_MULTICAST = "TORCH_SYMM_MEM_DISABLE_MULTICAST"
"""An environment variable. If it is 1, PyTorch does not use the multicast of NVLink switches."""
_REFUSED = (
    *("get_signal_pad", "get_remote_tensor", "memset32", "stream_write_value32"),
    *("put_signal", "wait_signal"),
)
_LIKE_FIRST = (
    *("one_shot_all_reduce", "one_shot_all_reduce_copy", "multimem_one_shot_all_reduce"),
    *("two_shot_all_reduce_", "multimem_all_reduce_"),
    *("one_shot_all_reduce_out", "multimem_one_shot_all_reduce_out", "two_shot_all_reduce_out"),
    "multimem_all_gather_out",
)
"""Operations that either return a tensor with the shape of their first argument, or write their
result into a tensor that the caller passes.
"""


def add_symmetric_memory(c10d: ModuleType, simulation: Simulation) -> None:
    """Replaces the symmetric memory of `torch._C._distributed_c10d` by a simulated one.

    Args:
        c10d: The module `torch._C._distributed_c10d`.
        simulation: The GPUs.
    """
    if not hasattr(c10d, "_SymmetricMemory"):
        return
    members = {
        "_simulation": simulation,
        "signal_pad_size": c10d._SymmetricMemory.signal_pad_size,
        **{name: not_simulated(name, _WHERE) for name in _REFUSED},
    }
    own = type(_WHERE, (_SymmetricMemory,), members)
    setattr(c10d, _WHERE, own)
    for name in _LIKE_FIRST:
        simulate_operation(f"symm_mem::{name}", Operation(shapes=lambda first, *_: first))


class _SymmetricMemory:
    """Stands in for the class `_SymmetricMemory` of PyTorch; a subclass sets `_simulation`."""

    _simulation: Simulation
    signal_pad_size: int

    def __init__(self, tensor: Any, group: Any) -> None:
        import torch

        self.device = tensor.device
        self.rank, self.world_size = group.rank(), group.size()
        self.buffer_size = tensor.untyped_storage().nbytes()
        self.offset = 0
        self._tensor = tensor
        memory = self._simulation.driver_memory
        self.buffer_ptrs = [
            tensor.data_ptr() if place == self.rank else memory.map_other()
            for place in range(self.world_size)
        ]
        self.signal_pad_ptrs = [memory.map_other() for _ in self.buffer_ptrs]
        stream = torch.cuda.current_stream(self.device).cuda_stream
        with torch.cuda.device(self.device):
            self.buffer_ptrs_dev, self.signal_pad_ptrs_dev = (
                torch._C._cuda_cudaCachingAllocator_raw_alloc(
                    _ADDRESS_BYTES * self.world_size, stream
                )
                for _ in range(2)
            )
        switched = self.has_multicast_support(None, self.device.index)
        self.multicast_ptr = memory.map_other() if switched and self.world_size > 1 else 0

    def get_buffer(self, rank: int, sizes: Any, dtype: Any, storage_offset: int = 0) -> Any:
        """Returns a tensor over the buffer of a rank, without allocating memory.

        Args:
            rank: The rank.
            sizes: The tensor's sizes.
            dtype: The tensor's type.
            storage_offset: The index of the tensor's first element in the buffer.
        """
        import torch

        address = self.buffer_ptrs[rank]
        storage = torch._C._construct_storage_from_data_pointer(
            address, self.device, self.buffer_size
        )
        strides = torch.empty(tuple(sizes), device="meta").stride()
        made = torch.empty(0, dtype=dtype, device=self.device)
        return made.set_(storage, storage_offset, tuple(sizes), strides)

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        """Does nothing. With real GPUs, too, the host does not wait here; the device does."""

    @staticmethod
    def set_group_info(group_name: str, rank: int, world_size: int, store: Any) -> None:
        """Does nothing: `rendezvous` finds the group by its name."""

    @staticmethod
    def set_backend(name: str) -> None:
        if name != "CUDA":
            not_simulated(f"set_backend({name!r})", _WHERE)()

    @staticmethod
    def get_backend(device: Any) -> str | None:
        return "CUDA" if device.type == "cuda" else None

    @staticmethod
    def get_mempool_allocator(device: Any) -> Any:
        del device
        import torch

        return torch._C._cuda_getAllocator()

    @classmethod
    def has_multicast_support(cls, device_type: Any, device_idx: int) -> bool:
        del device_type
        if os.environ.get(_WITHOUT_MULTICAST) == "1":
            return False
        card = cls._simulation.profiles[device_idx]
        return card.compute_capability[0] >= _MULTICAST_MAJOR and card.nvlinks >= _LINKS_OF_SWITCH

    @classmethod
    def empty_strided_p2p(
        cls,
        size: Any,
        stride: Any,
        dtype: Any,
        device: Any,
        group_name: str | None = None,
        alloc_id: int | None = None,
    ) -> Any:
        del group_name, alloc_id
        import torch

        on = torch.empty(0, dtype=dtype, device=device)
        number = on.device.index
        asked = math.prod(size) * dtype.itemsize
        memory = cls._simulation.driver_memory
        address = memory.allocate(number, asked + cls.signal_pad_size)
        storage = torch._C._construct_storage_from_data_pointer(address, on.device, asked)
        weakref.finalize(storage, memory.free, address)
        return on.set_(storage, 0, tuple(size), tuple(stride))

    @classmethod
    def rendezvous(cls, tensor: Any, group_name: str | None = None) -> Any:
        from torch.distributed.distributed_c10d import _resolve_process_group

        return cls(tensor, _resolve_process_group(group_name or "0"))
