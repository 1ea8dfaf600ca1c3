"""What `import torch` calls (PyTorch's `torch.backends` entry points), in every process that does.

So nothing is imported unless the environment asks for plimsoll.
"""

from __future__ import annotations

import os
import sys


def autoload() -> None:
    """Do what PLIMSOLL_ALLOCATOR and its like say; on simulated GPUs, nothing."""
    wanted = any(os.environ.get(f"PLIMSOLL_{name}") for name in ("ALLOCATOR", "REPORT", "RECORD"))
    if wanted and "plimsoll.torch.simulated.simulation" not in sys.modules:
        from plimsoll.torch.live.install import install_from_environment

        install_from_environment()
