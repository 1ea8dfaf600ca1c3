"""Tests host memory that a simulated device uses, and tensors that do not own their memory."""

from __future__ import annotations

import gc

import pytest

from tests.simulated import assumptions, on_simulated_gpus

torch = pytest.importorskip("torch")

GIB = 1 << 30


@on_simulated_gpus()
def test_mapped_memory_takes_nothing_of_the_card() -> None:
    torch.cuda.synchronize()
    free, _ = torch.cuda.mem_get_info()
    host = torch.empty(GIB, dtype=torch.uint8, pin_memory=True)
    mapped = torch.ops.plimsoll.map_host(host)
    assert (mapped.device, mapped.dtype) == (torch.device("cuda", 0), torch.uint8)
    assert (mapped.shape, mapped.stride()) == (host.shape, host.stride())
    assert mapped.data_ptr() == host.data_ptr()
    assert torch.cuda.mem_get_info()[0] == free
    assert torch.cuda.memory_allocated() == torch.cuda.max_memory_allocated() == 0
    del mapped
    assert torch.cuda.memory_allocated() == 0


@on_simulated_gpus("--gpus", "2")
def test_it_is_on_the_current_device() -> None:
    with torch.cuda.device(1):
        assert torch.ops.plimsoll.map_host(torch.zeros(4)).device.index == 1


@on_simulated_gpus()
def test_a_device_reads_what_the_host_wrote_last() -> None:
    host = torch.arange(6.0).view(2, 3).t()
    mapped = torch.ops.plimsoll.map_host(host)
    assert mapped.cpu().tolist() == host.tolist() == [[0, 3], [1, 4], [2, 5]]
    for value in (7.0, 8.0):
        host[1, 0] = value
        assert mapped[1].tolist() == [value, 4]
        assert mapped.clone().sum().item() == 14 + value


@on_simulated_gpus()
def test_the_host_reads_what_a_device_wrote() -> None:
    host = torch.zeros(4)
    mapped = torch.ops.plimsoll.map_host(host)
    mapped[1] = 5
    mapped[2:].copy_(torch.tensor([6.0, 7.0], device="cuda"))
    torch.cuda.synchronize()
    assert host.tolist() == [0, 5, 6, 7]
    mapped.mul_(2)
    assert host.tolist() == [0, 10, 12, 14]
    assert assumptions() == {}


@on_simulated_gpus()
def test_unknown_values_that_a_device_writes_are_assumed() -> None:
    host = torch.zeros(1 << 20)
    mapped = torch.ops.plimsoll.map_host(host)
    unknown = torch.randn(1024, 1 << 15, device="cuda")
    torch.sum(unknown @ unknown.t(), dim=1, out=mapped[:1024])
    assert host.count_nonzero() == 0
    assert [what for what in assumptions().values() if "wrote to host memory" in what] == [
        "this kernel wrote to host memory; plimsoll left the old values there"
    ]


@on_simulated_gpus()
def test_host_memory_lives_as_long_as_its_view() -> None:
    host = torch.full((1000,), 3.0)
    address = host.data_ptr()
    mapped = torch.ops.plimsoll.map_host(host)
    part = mapped[10:20]
    del host, mapped
    gc.collect()
    others = [torch.zeros(1000) for _ in range(50)]
    assert address not in {other.data_ptr() for other in others}
    assert part.tolist() == [3.0] * 10


@on_simulated_gpus()
def test_empty_tensors_are_mapped_to_empty_tensors() -> None:
    mapped = torch.ops.plimsoll.map_host(torch.zeros(0, 5, dtype=torch.int64))
    assert (mapped.shape, mapped.dtype, mapped.is_cuda) == ((0, 5), torch.int64, True)


@on_simulated_gpus()
def test_only_a_dense_tensor_of_the_host_is_mapped() -> None:
    for other in (torch.zeros(4, device="cuda"), torch.zeros(4, 4)[:, :2]):
        with pytest.raises(RuntimeError, match="only a dense tensor of the host can be mapped"):
            torch.ops.plimsoll.map_host(other)


@on_simulated_gpus()
def test_values_that_a_replayed_graph_writes_are_assumed() -> None:
    """A graph that is replayed on a simulated GPU computes no values."""
    host = torch.zeros(2)
    mapped = torch.ops.plimsoll.map_host(host)
    graph = torch.cuda.CUDAGraph()
    value = torch.ones(2, device="cuda")
    with torch.cuda.graph(graph):
        mapped.copy_(value)
    host.fill_(5)
    graph.replay()
    assert host.tolist() == [5, 5]
    assert any("wrote to host memory" in what for what in assumptions().values())


@on_simulated_gpus()
def test_an_unowned_tensor_is_the_same_memory() -> None:
    owner = torch.arange(12.0, device="cuda").view(3, 4)[1:, ::2]
    held = torch.cuda.memory_allocated()
    other = torch.ops.plimsoll.unowned(owner)
    assert torch.cuda.memory_allocated() == held
    assert (other.shape, other.stride(), other.dtype) == (owner.shape, owner.stride(), owner.dtype)
    assert other.data_ptr() == owner.data_ptr()
    assert other.tolist() == [[4, 6], [8, 10]]
    owner.zero_()
    assert other.sum().item() == 0
    other.fill_(2)
    assert owner.tolist() == [[2, 2], [2, 2]]


@on_simulated_gpus()
def test_it_does_not_keep_its_memory_alive() -> None:
    owner = torch.ones(1 << 20, device="cuda")
    other = torch.ops.plimsoll.unowned(owner)
    address = owner.data_ptr()
    del owner
    assert torch.cuda.memory_allocated() == 0
    again = torch.empty(1 << 20, device="cuda")
    assert again.data_ptr() == address
    del other
    assert torch.cuda.memory_allocated() == again.nbytes


@on_simulated_gpus()
def test_uses_of_freed_memory_do_no_harm() -> None:
    owner = torch.ones(1 << 20, device="cuda")
    other = torch.ops.plimsoll.unowned(owner)
    del owner
    torch.cuda.empty_cache()
    other.add_(1)
    other.sum().item()
    other[:5].cpu()
    del other
    assert torch.ones(3, device="cuda").tolist() == [1, 1, 1]
    assert torch.cuda.memory_allocated() == 0
