"""Runs ranks that communicate correctly, or that call collectives which do not match.

python talks.py (values|order|sizes|never|ends|host)
"""

import os
import sys
import time

import torch
import torch.distributed as dist


def values(rank: int, world: int) -> None:
    """Checks that each collective gives NCCL's result."""
    everybody = range(world)
    x = torch.tensor([rank + 1.0, 10.0], device="cuda")
    dist.all_reduce(x)
    assert x.tolist() == [sum(each + 1.0 for each in everybody), 10.0 * world]
    least = torch.tensor([rank], device="cuda")
    dist.all_reduce(least, dist.ReduceOp.MIN)
    assert least.item() == 0
    gathered: list[object] = [None] * world
    dist.all_gather_object(gathered, {"rank": rank})
    assert gathered == [{"rank": each} for each in everybody]
    sent = [f"of {rank}"]
    dist.broadcast_object_list(sent, src=1)
    assert sent == ["of 1"]
    parts = [torch.empty(2, device="cuda") for _ in everybody]
    dist.all_gather(parts, torch.full((2,), float(rank), device="cuda"))
    assert [part.tolist() for part in parts] == [[each, each] for each in everybody]
    mine = torch.empty(1, device="cuda")
    dist.reduce_scatter_tensor(mine, torch.arange(float(world), device="cuda"))
    assert mine.item() == rank * world
    counts = torch.tensor([rank + each + 1 for each in everybody], device="cuda")
    theirs = torch.empty_like(counts)
    dist.all_to_all_single(theirs, counts)
    assert theirs.tolist() == counts.tolist()
    rows = torch.full((int(counts.sum()), 3), float(rank), device="cuda")
    got = torch.empty(int(theirs.sum()), 3, device="cuda")
    dist.all_to_all_single(got, rows, theirs.tolist(), counts.tolist())
    expected = [float(each) for each in everybody for _ in range(rank + each + 1)]
    assert got[:, 0].tolist() == expected
    uneven = torch.full((1, 2 * world), float(rank), device="cuda")
    swapped = torch.zeros_like(uneven)
    dist.all_to_all_single(swapped, uneven)
    assert swapped[0].tolist() == [float(each) for each in everybody for _ in range(2)]
    dist.all_to_all_single(torch.empty((), device="cuda"), uneven[0, 0].clone())
    around = torch.empty(1, device="cuda")
    letters = [
        dist.P2POp(dist.isend, torch.tensor([float(rank)], device="cuda"), (rank + 1) % world),
        dist.P2POp(dist.irecv, around, (rank - 1) % world),
    ]
    for work in dist.batch_isend_irecv(letters):
        work.wait()
    assert around.item() == (rank - 1) % world
    some = [None]
    if rank == 0:
        dist.send_object_list([("shape", (3, 4))], 1)
    elif rank == 1:
        dist.recv_object_list(some, 0)
        assert some == [("shape", (3, 4))]
    outs = [torch.empty(1, device="cuda") for _ in everybody] if rank == 0 else None
    dist.gather(torch.tensor([float(rank)], device="cuda"), outs)
    assert outs is None or [out.item() for out in outs] == list(everybody)
    part = torch.empty(1, device="cuda")
    ins = [torch.tensor([each * 2.0], device="cuda") for each in everybody]
    dist.scatter(part, ins if rank == 0 else None)
    assert part.item() == rank * 2
    agreed(rank, world)


def agreed(rank: int, world: int) -> None:
    """Checks that the ranks agree on a reduced value that the simulated GPU does not compute."""
    unknown = torch.randn(1 << 26, device="cuda") @ torch.randn(1 << 26, 1, device="cuda")
    dist.all_reduce(unknown)
    heard: list[object] = [None] * world
    dist.all_gather_object(heard, unknown.item())
    assert len(set(heard)) == 1
    work = dist.all_reduce(torch.ones(1 << 24, device="cuda"), async_op=True)
    work.wait()
    group = dist.new_group([0, 1], backend="nccl")
    if rank < 2:
        pair = torch.ones(1, device="cuda")
        dist.all_reduce(pair, group=group)
        assert pair.item() == 2
    dist.barrier()


def host(rank: int, world: int) -> None:
    """Runs collectives on host tensors, by gloo."""
    x = torch.tensor([rank + 1.0])
    dist.all_reduce(x)
    assert x.item() == sum(each + 1.0 for each in range(world))
    if rank == 0:
        y = torch.zeros(1)
        assert dist.recv(y) == 1
        assert y.item() == 5
    elif rank == 1:
        dist.send(torch.tensor([5.0]), 0)
    dist.monitored_barrier()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    dist.barrier()


def disagree(mode: str, rank: int) -> None:
    x = torch.ones(4, device="cuda")
    if mode == "order" and rank == 0:
        dist.all_reduce(x)
    elif mode == "order":
        dist.broadcast(x, 0)
    elif mode == "sizes":
        dist.all_reduce(torch.ones(3 + rank, device="cuda"))
    elif rank == 0:
        dist.all_reduce(x)
    elif mode == "never":
        dist.recv(x, 0)


def again(rank: int) -> None:
    """Replaces the process group by a new one. Rank 0 sends and ends; rank 1 receives later."""
    for number in (1, 10):
        total = torch.tensor([number * (rank + 1)], device="cuda")
        dist.all_reduce(total)
        assert total.item() == 3 * number, total
        if number == 1:
            dist.barrier()
            dist.destroy_process_group()
            dist.init_process_group("nccl")
    if rank == 0:
        dist.send(torch.tensor([7], device="cuda"), 1)
        return
    time.sleep(4)
    received = torch.zeros(1, dtype=torch.int64, device="cuda")
    dist.recv(received, 0)
    assert received.item() == 7, received


def main() -> None:
    mode = sys.argv[1]
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("gloo" if mode == "host" else "nccl")
    world = dist.get_world_size()
    if mode == "values":
        values(rank, world)
    elif mode == "host":
        host(rank, world)
    elif mode == "again":
        again(rank)
    else:
        disagree(mode, rank)
    if mode != "ends":
        dist.destroy_process_group()


main()
