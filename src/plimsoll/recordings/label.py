"""Labels: what PyTorch knew of an address while the program ran, such as whose gradient it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Label:
    """A fact that PyTorch knew of an address while the program ran.

    Attributes:
        event: How many events of the device came before; the label is of the block live there then.
        address: An address at which a block begins.
        category: One of `plimsoll.analysis.CATEGORIES`; readers leave out names they do not know.
        device: The number of the device; `event` counts its events.
    """

    event: int
    address: int
    category: str
    device: int = 0
