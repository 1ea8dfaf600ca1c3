"""A function over many items: on the processes of this machine, or on Ray."""

from plimsoll.workers.done import Done
from plimsoll.workers.everywhere import run_all, where

__all__ = ["Done", "run_all", "where"]
