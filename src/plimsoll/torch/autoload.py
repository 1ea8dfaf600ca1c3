"""What `import torch` calls (PyTorch's `torch.backends` entry points), in every process that does.

So nothing is imported unless the environment asks for plimsoll.
"""

from __future__ import annotations

import os
import sys


def autoload() -> None:
    """Do what PLIMSOLL_ALLOCATOR and PLIMSOLL_REPORT say; on simulated GPUs, nothing."""
    wanted = os.environ.get("PLIMSOLL_ALLOCATOR") or os.environ.get("PLIMSOLL_REPORT")
    if wanted and "plimsoll.torch.simulation" not in sys.modules:
        from plimsoll.torch.install import install_from_environment

        install_from_environment()
