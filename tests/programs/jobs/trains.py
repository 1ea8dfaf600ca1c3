"""Trains a small model on two ranks: python trains.py (ddp|views|fsdp2|pipeline|late)."""

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
    """Returns layers of WIDTH * WIDTH parameters each."""
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(count))).cuda()


def steps(model: nn.Module) -> None:
    """Makes three steps of Adam."""
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        model(torch.randn(64, WIDTH, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def ddp() -> None:
    """Trains with the whole model on each rank."""
    steps(DistributedDataParallel(layers(4)))


def views() -> None:
    """Trains with the whole model on each rank. The gradients are views of DDP's buckets."""
    steps(DistributedDataParallel(layers(4), gradient_as_bucket_view=True))


def fsdp2() -> None:
    """Trains with half of each layer on each rank."""
    model = layers(4)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    steps(model)


def pipeline() -> None:
    """Trains a pipeline: rank 0 has one layer, rank 1 has three."""
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
    """Lets rank 0 wait for rank 1 in an all-reduce."""
    time.sleep(1.2 * dist.get_rank())
    dist.all_reduce(torch.ones(1, device="cuda"))


def main() -> None:
    """Runs the function that the argument names."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    kinds = {"ddp": ddp, "views": views, "fsdp2": fsdp2, "pipeline": pipeline, "late": late}
    kinds[sys.argv[1]]()
    dist.destroy_process_group()


main()
