"""Stand-in for xformers 0.0.33."""

from __future__ import annotations

__version__ = "0.0.33"
