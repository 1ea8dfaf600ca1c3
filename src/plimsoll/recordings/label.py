"""Labels tell what PyTorch knew about an address while the program ran: "a parameter is here"."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Label:
    """The use of the block at an address, as PyTorch knew it while the program ran.

    Attributes:
        event: The number of events of the device before the label, which is about the block that is
            live at the address then.
        address: An address at which a block begins.
        category: One of the names in `category_names`; readers leave out labels with other names.
        device: The number of the device.
    """

    event: int
    address: int
    category: str
    device: int = 0
