"""Catches an out-of-memory error; then exits, raises another error, or raises the caught error.

python out_of_memory_at_the_end.py (exit|other|same)
"""

import sys

import torch

try:
    torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    if sys.argv[1] == "exit":
        sys.exit(1)
    if sys.argv[1] == "other":
        raise RuntimeError("training failed") from error
    raise
