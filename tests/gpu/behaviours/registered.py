"""Behaviours of memory that never moves: memory registered with NCCL, and symmetric memory."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from tests.gpu.behaviours.behaviour import Observed, UnavailableError, at_most, behaviour
from tests.gpu.behaviours.tools import MIB, empty, pool_bytes

DEVICE = torch.device("cuda", 0)
# NVLink multicast can put shared GPUs out of service, so it is off.
WITHOUT_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "NVSHMEM_DISABLE_NVLS": "1",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}


@contextmanager
def group() -> Iterator[Any]:
    """Makes a process group with only this process. Yields its NCCL backend."""
    if not dist.is_available() or not dist.is_nccl_available():
        raise UnavailableError("this PyTorch has no NCCL")
    os.environ.update(WITHOUT_MULTICAST)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "nccl",
            init_method=f"file://{folder}/store",
            rank=0,
            world_size=1,
            device_id=DEVICE,
        )
        try:
            yield dist.group.WORLD._get_backend(DEVICE)
        finally:
            dist.destroy_process_group()


def available(call: Callable[[], Any]) -> Any:
    """Returns a call's result; if the call fails, raises UnavailableError with the reason."""
    try:
        return call()
    except (AttributeError, RuntimeError) as error:
        raise UnavailableError((str(error).splitlines() or ["it says nothing"])[0]) from error


def move_others() -> None:
    """Requests many sizes, so that the allocator moves free memory to other addresses."""
    for i in range(30):
        others = [empty(MIB * (1 + (7 * i + 3 * j) % 37)) for j in range(12)]
        del others[::2]
        larger = empty(MIB * (40 + i))
        del others, larger
    torch.cuda.empty_cache()


def registered(backend: Any, pool: Any) -> Observed:
    """Registers a pool, uses it while other memory moves, and deregisters it."""
    before = torch.cuda.memory_allocated()
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.arange(4 * MIB, dtype=torch.float32, device=DEVICE)
    available(lambda: backend.register_mem_pool(pool))
    address, total = tensor.data_ptr(), tensor.double().sum().item()
    dist.all_reduce(tensor)
    move_others()
    # The pool gets new memory here. NCCL registers that memory as soon as it is allocated.
    with torch.cuda.use_mem_pool(pool):
        late = [torch.full((MIB * (1 + i),), float(i), device=DEVICE) for i in range(4)]
        del late[1]
        late.append(torch.full((6 * MIB,), 9.0, device=DEVICE))
    for one in late:
        dist.all_reduce(one)
    dist.all_reduce(tensor[1000:2000])
    torch.cuda.synchronize()
    seen: Observed = {
        "total": [tensor.double().sum().item() - total, *(one.mean().item() for one in late)],
        "stays": tensor.data_ptr() == address,
        "pool": pool_bytes(pool.id),
        "reserved": pool_bytes(pool.id, "total_size"),
    }
    backend.deregister_mem_pool(pool)
    del tensor, late, one
    torch.cuda.synchronize()
    return {**seen, "left": torch.cuda.memory_allocated() - before}


@behaviour(own_process=True)
def a_pool_of_nccls_memory_is_registered() -> Observed:
    with group() as backend:
        allocator = available(lambda: backend.mem_allocator)
        pool = torch.cuda.MemPool(allocator)
        seen = registered(backend, pool)
        del pool
        torch.cuda.empty_cache()
    return {**seen, "works": torch.ones(MIB, device=DEVICE).sum().item()}


@behaviour(own_process=True, elastic={"reserved": at_most})
def an_ordinary_pool_is_registered() -> Observed:
    with group() as backend:
        pool = torch.cuda.MemPool()
        seen = registered(backend, pool)
        del pool
        torch.cuda.empty_cache()
    return {**seen, "works": torch.ones(MIB, device=DEVICE).sum().item()}


@behaviour(own_process=True)
def nccl_allocates_a_tensor() -> Observed:
    with group() as backend:
        if not available(lambda: backend.supports_tensor_alloc(DEVICE)):
            raise UnavailableError("NCCL allocates no tensors on this GPU")
        tensor = available(
            lambda: backend.allocate_tensor(2 * MIB, dtype=torch.float32, device=DEVICE)
        )
        address = tensor.fill_(3).data_ptr()
        move_others()
        dist.all_reduce(tensor)
        seen: Observed = {
            "sum": tensor.double().sum().item(),
            "stays": tensor.data_ptr() == address,
        }
        del tensor
        torch.cuda.synchronize()
    return seen


@behaviour(own_process=True)
def symmetric_memory_without_multicast() -> Observed:
    with group():
        memory = importlib.import_module("torch.distributed._symmetric_memory")
        tensor = available(lambda: memory.empty(2 * MIB, dtype=torch.float32, device=DEVICE))
        handle = available(lambda: memory.rendezvous(tensor, dist.group.WORLD.group_name))
        tensor.fill_(2)
        move_others()
        own = handle.get_buffer(0, tensor.shape, tensor.dtype)
        own.add_(1)
        torch.cuda.synchronize()
        seen: Observed = {
            "ranks": [handle.rank, handle.world_size],
            "sum": tensor.double().sum().item(),
            "is_same": own.data_ptr() == tensor.data_ptr(),
        }
    return seen
