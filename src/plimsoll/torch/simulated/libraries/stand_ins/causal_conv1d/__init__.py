"""Stand-in for causal-conv1d 1.6."""

from __future__ import annotations

from .causal_conv1d_interface import causal_conv1d_fn, causal_conv1d_update

__version__ = "1.6.0"
__all__ = ["causal_conv1d_fn", "causal_conv1d_update"]
