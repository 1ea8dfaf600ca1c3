"""Stand-in for mamba-ssm 2.3. It has Mamba, but not Mamba2, whose scan is in Triton."""

from __future__ import annotations

from .modules.mamba_simple import Mamba
from .ops.selective_scan_interface import mamba_inner_fn, selective_scan_fn

__version__ = "2.3.0"
__all__ = ["Mamba", "mamba_inner_fn", "selective_scan_fn"]
