"""Allocates 1 GiB for each sample of a batch.

    python batch.py --batch-size N [--mib] [--most M]

With --mib it allocates 1 MiB for each sample. More than M samples are an error.
"""

import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
parser.add_argument("--mib", action="store_true")
parser.add_argument("--most", type=int, default=1 << 20)
arguments = parser.parse_args()
print("noise")
assert arguments.batch_size <= arguments.most, "too many"
x = torch.empty(
    arguments.batch_size << (20 if arguments.mib else 30), dtype=torch.uint8, device="cuda"
)
