"""Batches on their way to the GPU: copied ahead, from page-locked memory, and safe to keep."""

from __future__ import annotations

from plimsoll.data.collate import PinnedCollate
from plimsoll.data.copies import Copy, copy_async
from plimsoll.data.loader import PrefetchLoader
from plimsoll.data.statistics import LoaderStatistics

__all__ = ["Copy", "LoaderStatistics", "PinnedCollate", "PrefetchLoader", "copy_async"]
