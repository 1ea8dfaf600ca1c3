"""The function that PyTorch calls at each `import torch`, by the entry points `torch.backends`.

It must cost nothing in other programs, so it imports nothing unless the environment asks for
plimsoll.
"""

from __future__ import annotations

import os


def autoload() -> None:
    """Does what PLIMSOLL_ALLOCATOR and similar variables ask for; nothing on simulated GPUs."""
    wanted = any(os.environ.get(f"PLIMSOLL_{name}") for name in ("ALLOCATOR", "REPORT", "RECORD"))
    if not wanted:
        return
    from plimsoll.engine.current import current_engines

    if current_engines() is None:  # simulated GPUs have engines already
        from plimsoll.torch.session.install import install_from_environment

        install_from_environment()
