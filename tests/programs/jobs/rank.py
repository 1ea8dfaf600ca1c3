"""Runs one rank of a job: python rank.py KIND...; the launcher sets its rank.

Rank N holds (N + 1) MiB on the GPU of its local rank. The kinds are:

- "fails": rank 1 raises an exception;
- "ends": rank 1 exits;
- "fills": rank 1 requests more memory than its GPU has;
- "waits": the ranks wait for minutes;
- "talks": the ranks communicate by NCCL;
- "crowds": all ranks also use the first GPU;
- "nowhere": no rank uses a GPU;
- "numbers" (with "talks"): the ranks make a second group, and name its ranks by NumPy numbers.
"""

import os
import sys
import time

import torch

MIB = 1 << 20


def main() -> None:
    """Does what the arguments name."""
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    if "nowhere" in sys.argv:
        print(f"rank {rank} is on the host")
        return
    torch.cuda.set_device(local)
    held = torch.zeros((rank + 1) * MIB, dtype=torch.uint8, device="cuda")
    print(
        f"rank {rank} of {os.environ['WORLD_SIZE']} on {held.device} with {sys.argv[1:]}",
        flush=True,
    )
    if "talks" in sys.argv:
        import torch.distributed as dist

        dist.init_process_group("nccl")
        if rank == 1 and "ends" in sys.argv:
            sys.exit(3)
        dist.all_reduce(held[:8])
        if "numbers" in sys.argv:
            import numpy

            dist.all_reduce(held[:8], group=dist.new_group(ranks=numpy.arange(2)))
    if "crowds" in sys.argv and local > 0:
        torch.zeros(1, device="cuda:0")
    if rank == 1:
        if "fails" in sys.argv:
            raise ValueError("this rank gives up")
        if "ends" in sys.argv:
            sys.exit(3)
        if "fills" in sys.argv:
            torch.zeros(20 << 30, dtype=torch.uint8, device="cuda")
    if "waits" in sys.argv:
        print("waiting", os.getpid(), flush=True)
        time.sleep(300)


if __name__ == "__main__":
    main()
