"""The function that each `import torch` calls, by PyTorch's `torch.backends` entry points.

It therefore imports nothing unless the environment requests plimsoll.
"""

from __future__ import annotations

import os


def autoload() -> None:
    """Follows PLIMSOLL_ALLOCATOR and similar variables; does nothing on simulated GPUs."""
    wanted = any(os.environ.get(f"PLIMSOLL_{name}") for name in ("ALLOCATOR", "REPORT", "RECORD"))
    if not wanted:
        return
    from plimsoll.engine.current import current_engines

    if current_engines() is None:  # simulated GPUs have their engines
        from plimsoll.torch.session.install import install_from_environment

        install_from_environment()
