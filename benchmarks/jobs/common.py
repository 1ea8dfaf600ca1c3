"""Begins and ends a job, which is a training script of this folder, and measures its memory.

If the environment variable JOB_REPORT names a folder, each rank writes rank<R>.json there at the
end of the job. The file has PyTorch's peaks of allocated and reserved memory. After each step, the
job also reads the card's memory in use, and the part of that memory that PyTorch's allocator has
not reserved. The file has the peak of each of these two values. Each rank must have a card of its
own. Without JOB_REPORT nothing is measured, but the host still waits for the card at the end of
each step.
"""

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist

most = {"device_used_bytes": 0, "outside_bytes": 0}


def begin(bound=False):
    """Joins the job and returns the device.

    If `bound`, the NCCL communicator is created here, otherwise by the first collective.
    """
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device if bound else None)
    torch.manual_seed(0)
    return device


def own_data():
    """Gives each rank its own random seed, so that the ranks train on different data."""
    torch.manual_seed(1 + dist.get_rank())


def stepped():
    """Waits for the card at the end of a step, and records the memory in use."""
    torch.cuda.synchronize()
    if "JOB_REPORT" not in os.environ:
        return
    free, total = torch.cuda.mem_get_info()
    most["device_used_bytes"] = max(most["device_used_bytes"], total - free)
    outside = total - free - torch.cuda.memory_reserved()
    most["outside_bytes"] = max(most["outside_bytes"], outside)


def end():
    """Writes this rank's report if JOB_REPORT is set, and destroys the process group."""
    stepped()
    if folder := os.environ.get("JOB_REPORT"):
        found = {
            "allocated_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
            **most,
        }
        Path(folder, f"rank{os.environ['RANK']}.json").write_text(json.dumps(found))
    if dist.is_initialized():
        dist.destroy_process_group()
