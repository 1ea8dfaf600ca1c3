"""Notes assumptions about compiled programs."""

from __future__ import annotations


def assume(what_of: str, what: str) -> None:
    """Notes an assumption for the report; works even while a compiler runs in this thread.

    Args:
        what_of: The operation or kernel that the assumption is about, by name.
        what: The assumption.
    """
    import torch

    with torch._C._DisableTorchDispatch():
        torch.ops.plimsoll.assume(what_of, what)
