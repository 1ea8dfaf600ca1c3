"""Starts two ranks by `torch.multiprocessing.spawn`; each prints the sum of an all-reduce."""

import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def rank(number: int, port: int) -> None:
    """Runs one rank."""
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("nccl", init_method=address, rank=number, world_size=2)
    torch.cuda.set_device(number)
    total = torch.tensor([number + 1], device="cuda")
    dist.all_reduce(total)
    print(f"rank {number} of 2 on {total.device} has {total.item()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        chosen = free.getsockname()[1]
    mp.spawn(rank, args=(chosen,), nprocs=2)
