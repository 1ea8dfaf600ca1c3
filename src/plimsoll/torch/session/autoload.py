"""What `import torch` calls (PyTorch's `torch.backends` entry points), in every process that does.

So nothing is imported unless the environment asks for plimsoll.
"""

from __future__ import annotations

import os


def autoload() -> None:
    """Do what PLIMSOLL_ALLOCATOR and its like say; on simulated GPUs, nothing."""
    wanted = any(os.environ.get(f"PLIMSOLL_{name}") for name in ("ALLOCATOR", "REPORT", "RECORD"))
    if not wanted:
        return
    from plimsoll.engine.current import current_engines

    if current_engines() is None:  # simulated GPUs have theirs
        from plimsoll.torch.session.install import install_from_environment

        install_from_environment()
