"""Labels: facts that PyTorch knew about an address while the program ran, such as its parameter."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Label:
    """A fact that PyTorch knew of an address while the program ran.

    Attributes:
        event: The number of events of the device before; the label is for the block live then.
        address: An address at which a block begins.
        category: One of the names in `category_names`; readers leave out names they do not know.
        device: The number of the device; `event` counts its events.
    """

    event: int
    address: int
    category: str
    device: int = 0
