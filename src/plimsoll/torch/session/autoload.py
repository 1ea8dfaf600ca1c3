"""Defines the function that PyTorch calls at the end of each `import torch`.

PyTorch finds the function through plimsoll's entry point in the group `torch.backends`. The
function imports nothing unless the environment asks for plimsoll, so that programs without plimsoll
lose no time.
"""

from __future__ import annotations

import os


def autoload() -> None:
    """Does what PLIMSOLL_ALLOCATOR, _REPORT, _RECORD and _METRICS ask for.

    Does nothing on simulated GPUs.
    """
    names = ("ALLOCATOR", "REPORT", "RECORD", "METRICS")
    wanted = any(os.environ.get(f"PLIMSOLL_{name}") for name in names)
    if not wanted:
        return
    from plimsoll.engine.current import current_engines

    if current_engines() is None:  # simulated GPUs have engines already
        from plimsoll.torch.session.install import install_from_environment

        install_from_environment()
