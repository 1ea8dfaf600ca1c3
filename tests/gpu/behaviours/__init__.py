"""Checks behaviours of `torch.cuda`'s memory that users rely on, each by a small program.

A program returns named observations. It runs once under PyTorch's own allocator, and once under
each of plimsoll's allocators. All runs must return equal observations, unless the program
declares another relation, such as "at most". `python -m tests.gpu.behaviours` runs all programs and
prints a table.
"""

from __future__ import annotations

from importlib import import_module

from tests.gpu.behaviours.behaviour import BEHAVIOURS, Behaviour

GROUPS = (  # the slow groups come first
    "card",
    "compiled",
    "sharing",
    "registered",
    "processes",
    "statistics",
    "limits",
    "history",
    "streams",
    "graphs",
    "pools",
    "transfers",
    "training",
)


def load() -> list[Behaviour]:
    """Imports the groups. Returns all behaviours in the order in which they were registered."""
    for group in GROUPS:
        import_module(f"tests.gpu.behaviours.{group}")
    return list(BEHAVIOURS.values())
