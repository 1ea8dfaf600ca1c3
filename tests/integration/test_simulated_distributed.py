"""One process of a distributed job on simulated GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from plimsoll.prediction import predict

pytest.importorskip("torch")

TRAIN = """
import json
import sys
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group(sys.argv[1])
norm = nn.SyncBatchNorm(8).cuda()
norm(torch.randn(4, 8, 9, device="cuda")).sum().backward()
assert norm.weight.grad.shape == (8,)
del norm
model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)).cuda()
before = torch.cuda.memory_allocated()
if sys.argv[2] == "ddp":
    model = nn.parallel.DistributedDataParallel(model, device_ids=[0])
elif sys.argv[2] == "ddp_views":
    model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
else:
    from torch.distributed.fsdp import fully_shard
    fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(32, 1024, device="cuda")).square().mean().backward()
    held = torch.cuda.memory_allocated() - before
    optimizer.step()
    optimizer.zero_grad()
work = dist.all_reduce(torch.ones(3, device="cuda"), async_op=True)
work.wait()
gathered = [torch.empty(3, device="cuda") for _ in range(dist.get_world_size())]
dist.all_gather(gathered, torch.ones(3, device="cuda"))
dist.barrier()
group = dist.new_group(range(dist.get_world_size()), backend="nccl")
dist.all_reduce(torch.ones(3, device="cuda"), group=group)
print(json.dumps({
    "world": dist.get_world_size(),
    "rank": dist.get_rank(),
    "held": held,
}))
dist.destroy_process_group()
"""

WEIGHTS = 2 * (1024 * 1024 + 1024) * 4


def train(folder: Path, backend: str, kind: str, **environment: str) -> tuple[dict[str, int], str]:
    path = folder / "train.py"
    path.write_text(TRAIN)
    command = [sys.executable, "-m", "plimsoll", "run", "--simulate", "A100-80GB", str(path)]
    done = subprocess.run(
        [*command, backend, kind],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_one_process_of_many_trains(tmp_path: Path, backend: str) -> None:
    found, said = train(tmp_path, backend, "ddp", WORLD_SIZE="8", RANK="3")
    assert (found["world"], found["rank"]) == (8, 3)
    assert "one process of 8" in said


def test_gradients_of_data_parallel_training_are_in_buckets_too(tmp_path: Path) -> None:
    apart, _ = train(tmp_path, "nccl", "ddp", WORLD_SIZE="2", RANK="0")
    views, _ = train(tmp_path, "nccl", "ddp_views", WORLD_SIZE="2", RANK="0")
    assert apart["held"] - views["held"] == pytest.approx(WEIGHTS, rel=0.01)


def test_a_sharded_model_holds_its_part(tmp_path: Path) -> None:
    alone, _ = train(tmp_path, "nccl", "fsdp")
    shared, _ = train(tmp_path, "nccl", "fsdp", WORLD_SIZE="8", RANK="0")
    assert (alone["world"], shared["world"]) == (1, 8)
    # Weights and gradients.
    assert alone["held"] - shared["held"] == pytest.approx(2 * WEIGHTS * 7 / 8, rel=0.02)


def test_a_prediction_is_of_one_process_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("RANK", "0")
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    found = predict(path, ["nccl", "fsdp"], gpu="T4")
    assert found.by_category["parameters"] == WEIGHTS / 8
    assert any(
        assumed.what == "one process of 8 runs; what others would send is pretended"
        for assumed in found.assumptions
    )
