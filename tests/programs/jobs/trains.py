"""Two ranks train a small model: python trains.py (ddp|fsdp2|pipeline|late)."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

WIDTH = 1024


def layers(count: int) -> nn.Sequential:
    """Layers of WIDTH * WIDTH parameters each."""
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(count))).cuda()


def steps(model: nn.Module) -> None:
    """Three steps of Adam."""
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        model(torch.randn(64, WIDTH, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def ddp() -> None:
    """Each rank has the whole model."""
    steps(DistributedDataParallel(layers(4)))


def fsdp2() -> None:
    """Each rank has half of each layer."""
    model = layers(4)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    steps(model)


def pipeline() -> None:
    """The second rank has three layers of four."""
    rank = dist.get_rank()
    part = layers(1 + 2 * rank)
    device = torch.device("cuda", rank)
    stage = PipelineStage(part, rank, 2, device)
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
    for _ in range(2):
        if rank == 0:
            schedule.step(torch.randn(64, WIDTH, device=device))
        else:
            losses: list[torch.Tensor] = []
            schedule.step(target=torch.zeros(64, WIDTH, device=device), losses=losses)
            assert len(losses) == 2


def late() -> None:
    """The first rank waits for the second one."""
    time.sleep(1.2 * dist.get_rank())
    dist.all_reduce(torch.ones(1, device="cuda"))


def main() -> None:
    """Do as the argument says."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    {"ddp": ddp, "fsdp2": fsdp2, "pipeline": pipeline, "late": late}[sys.argv[1]]()
    dist.destroy_process_group()


main()
