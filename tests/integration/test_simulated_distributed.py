"""Tests one process of a distributed job on simulated GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plimsoll.prediction.predict import predict
from plimsoll.torch.building import versions
from tests.simulated import PROGRAMS, on_simulated_gpus, simulate

pytest.importorskip("torch")

TRAIN = PROGRAMS / "simulated" / "one_of_many.py"
WEIGHTS = 2 * (1024 * 1024 + 1024) * 4


def train(backend: str, kind: str, **environment: str) -> tuple[dict[str, int], str]:
    done = simulate(TRAIN, arguments=[backend, kind], environment=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.long
@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_one_process_of_many_trains(backend: str) -> None:
    found, said = train(backend, "ddp", WORLD_SIZE="8", RANK="3")
    assert (found["world"], found["rank"]) == (8, 3)
    assert "one of 8 processes runs" in said


@pytest.mark.long
def test_gradients_of_data_parallel_training_are_in_buckets_too() -> None:
    apart, _ = train("nccl", "ddp", WORLD_SIZE="2", RANK="0")
    views, _ = train("nccl", "ddp_views", WORLD_SIZE="2", RANK="0")
    assert apart["held"] - views["held"] == pytest.approx(WEIGHTS, rel=0.01)


@pytest.mark.long
def test_a_sharded_model_holds_its_part() -> None:
    alone, _ = train("nccl", "fsdp")
    shared, _ = train("nccl", "fsdp", WORLD_SIZE="8", RANK="0")
    assert (alone["world"], shared["world"]) == (1, 8)
    # 7/8 of the weights and gradients are on other ranks.
    assert alone["held"] - shared["held"] == pytest.approx(2 * WEIGHTS * 7 / 8, rel=0.02)


@pytest.mark.long
def test_a_prediction_is_of_one_process_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("RANK", "0")
    found = predict(TRAIN, ["nccl", "fsdp"], gpu="T4")
    # At the peak, the process holds its own shard and all parameters, which FSDP has gathered.
    assert found.by_category["parameters"] == WEIGHTS / 8 + WEIGHTS
    assert any(
        assumed.what == "one of 8 processes runs; plimsoll assumes that the others do the same"
        for assumed in found.assumptions
    )


@pytest.mark.skipif(
    versions.torch_version() < (2, 13), reason="PyTorch's own fake group gathers nothing before"
)
@on_simulated_gpus()
def test_one_process_of_one_is_given_what_it_gave() -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl")
    given = {"name": "a", "numbers": list(range(100))}
    gathered: list[object] = [None]
    dist.gather_object(given, gathered)
    assert gathered == [given]
    from_all: list[object] = [None]
    dist.all_gather_object(from_all, given)
    assert from_all == [given]
    sent = [given, 3]
    dist.broadcast_object_list(sent)
    assert sent == [given, 3]
    scattered: list[object] = [None]
    dist.scatter_object_list(scattered, [given])
    assert scattered == [given]
    x = torch.arange(4.0, device="cuda")
    for collective in (dist.all_reduce, dist.broadcast, dist.reduce):
        y = x.clone()
        collective(y) if collective is dist.all_reduce else collective(y, 0)
        assert y.tolist() == x.tolist()
    parts = [torch.zeros(4, device="cuda")]
    dist.gather(x, parts)
    assert parts[0].tolist() == x.tolist()


@on_simulated_gpus()
def test_a_collective_refuses_parts_of_another_size_type_or_number() -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl")
    x, long = torch.ones(4, device="cuda"), torch.ones(5, device="cuda")
    with pytest.raises(ValueError, match="world_size times input"):
        dist.all_gather_into_tensor(long, x)
    with pytest.raises(TypeError, match="same type"):
        dist.all_gather_into_tensor(x.half(), x)
    with pytest.raises(ValueError, match="output size times world size"):
        dist.reduce_scatter_tensor(x, long)
    with pytest.raises(ValueError, match="a list of 2 tensors"):
        dist.all_gather([x.clone(), long], x)
    with pytest.raises((ValueError, RuntimeError)):
        dist.all_to_all_single(x.clone(), x, [3], [4])
    with pytest.raises(ValueError, match="bytes"):
        dist.all_to_all_single(x[:3].clone(), x)
    dist.all_gather_into_tensor(x.clone(), x)


@on_simulated_gpus()
def test_nccl_takes_parts_that_it_does_not_check() -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl")
    group = dist.group.WORLD
    x, long, more = (torch.ones(n, device="cuda") * n for n in (4, 5, 9))
    group.allgather_into_tensor_coalesced([long], [x]).wait()
    assert long.tolist() == [4, 4, 4, 4, 5]
    group.reduce_scatter_tensor_coalesced([x], [more]).wait()
    assert x.tolist() == [9] * 4
    group.allgather_into_tensor_coalesced([x.long()], [x]).wait()
    with pytest.raises(ValueError, match="the output has 16 bytes"):
        group.allgather_into_tensor_coalesced([x], [more])
    with pytest.raises(ValueError, match="the output has 8 bytes"):
        group.reduce_scatter_tensor_coalesced([x.half()], [more])
    with pytest.raises(ValueError, match="the input has 16 bytes"):
        group.reduce_scatter_tensor_coalesced([more], [x])
    parts = [torch.zeros(4, device="cuda") for _ in range(2)]
    dist.all_gather(parts, x)
    assert parts[0].tolist() == [9] * 4
    dist.reduce_scatter(parts[1], [x * 2, x])
    assert parts[1].tolist() == [18] * 4
    number = torch.zeros((), device="cuda")
    dist.all_to_all_single(number, x[0].clone())
    assert number.item() == 9


# The methods of ProcessGroupNCCL. Sources: torch/_C/_distributed_c10d.pyi of PyTorch 2.13, 2.14 and
# main, which agree, and torch/csrc/distributed/c10d/init.cpp for names that the stubs leave out.
NCCL_METHODS = {
    "_add_ephemeral_timeout", "_comm_ptr", "_end_time_estimate", "_group_end", "_group_start",
    "_is_initialized", "_set_default_timeout", "_shutdown", "_start_time_estimate",
    "_verify_work_timeout", "abort", "bound_device_id", "comm_split_count", "deregister_mem_pool",
    "get_error", "options", "perform_nocolor_split", "register_mem_pool", "uid",
}  # fmt: skip


@on_simulated_gpus()
def test_a_backend_of_nccls_has_every_method_of_process_group_nccl() -> None:
    import ast
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    stub = Path(torch.__file__).with_name("_C") / "_distributed_c10d.pyi"
    declared = {
        method.name
        for kind in ast.parse(stub.read_text()).body
        if isinstance(kind, ast.ClassDef) and kind.name == "ProcessGroupNCCL"
        for method in kind.body
        if isinstance(method, ast.FunctionDef)
    } - {"__init__"}
    dist.init_process_group("nccl")
    group = dist.distributed_c10d._get_default_group()
    backend = group._get_backend(torch.device("cuda"))
    assert len(declared) > 10
    missing = {name for name in declared | NCCL_METHODS if not hasattr(type(backend), name)}
    assert missing <= {"get_build_nccl_version", "get_runtime_nccl_version"}
    assert all(hasattr(dist.ProcessGroupNCCL, name) for name in missing)
    assert not backend._is_initialized()
    dist.all_reduce(torch.ones(1, device="cuda"))
    assert backend._is_initialized()
    backend._add_ephemeral_timeout(timedelta(seconds=1))
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=5))
    with pytest.raises(NotImplementedError, match=r"does not simulate .*_verify_work_timeout"):
        backend._verify_work_timeout(None, timedelta(seconds=1))
    other = torch._C._distributed_c10d.FakeProcessGroup._create_internal(0, 1)
    assert not hasattr(other, "_group_start")


@pytest.mark.long
def test_one_process_of_one_says_nothing() -> None:
    _, said = train("nccl", "ddp")
    assert "processes runs" not in said
