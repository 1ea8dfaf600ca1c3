"""Tests checkpoints of a memory pool's blocks, as PyTorch's CUDA graph trees make them."""

from __future__ import annotations

import pytest

from tests.simulated import on_simulated_gpus

torch = pytest.importorskip("torch")

MIB = 1 << 20


@on_simulated_gpus()
def test_blocks_are_live_again_where_they_were_and_belong_to_a_storage() -> None:
    c = torch._C
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    address = x.data_ptr()
    state = c._cuda_getCheckpointState(0, pool.id)
    assert c._cuda_checkPoolLiveAllocations(0, pool.id, {address})
    del x
    assert torch.cuda.memory_allocated() == 0
    assert c._cuda_checkPoolLiveAllocations(0, pool.id, set())
    lent = c._construct_storage_from_data_pointer(address, torch.device("cuda:0"), 3 * MIB)
    assert not c._has_Standard_Deleter(lent._cdata)
    c._cuda_setCheckpointPoolState(0, state, [], [lent._cdata])
    assert torch.cuda.memory_allocated() == 3 * MIB
    assert c._has_Standard_Deleter(lent._cdata)
    metadata = {"size": (MIB,), "stride": (3,), "dtype": torch.uint8, "storage_offset": 1}
    tensor = c._construct_CUDA_Tensor_From_Storage_And_Metadata(metadata, lent)
    assert tensor.data_ptr() == address + 1
    assert tensor.stride() == (3,)
    del tensor, lent
    assert torch.cuda.memory_allocated() == 0


@on_simulated_gpus()
def test_a_block_that_no_storage_owns_is_freed_by_its_address() -> None:
    c = torch._C
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    address = x.data_ptr()
    state = c._cuda_getCheckpointState(0, pool.id)
    del x
    c._cuda_setCheckpointPoolState(0, state, [], [])
    assert torch.cuda.memory_allocated() == MIB
    c._cuda_cudaCachingAllocator_raw_delete(address)
    assert torch.cuda.memory_allocated() == 0


@on_simulated_gpus()
def test_what_a_graph_overwrites_tells_who_uses_it() -> None:
    c = torch._C
    x = torch.ones(8, device="cuda")
    c._free_And_Remove_DeleterFn(x.untyped_storage()._cdata)
    assert torch.cuda.memory_allocated() == 0
    c._set_storage_data_ptr_access_error_msg(x.untyped_storage()._cdata, "it was overwritten")
    with pytest.raises(RuntimeError, match="it was overwritten"):
        x.data_ptr()
