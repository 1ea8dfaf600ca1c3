"""What is assumed of compiled programs."""

from __future__ import annotations


def assume(what_of: str, what: str) -> None:
    """Note it for the report, whatever a compiler does in this thread meanwhile.

    Args:
        what_of: A name of what it is about.
        what: The assumption.
    """
    import torch

    with torch._C._DisableTorchDispatch():
        torch.ops.plimsoll.assume(what_of, what)
