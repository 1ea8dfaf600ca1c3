"""Labels: what blocks are used for, such as "parameters", noted while the program runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Label:
    """The use of the block at an address, noted while the program ran.

    Attributes:
        event: The number of the device's events before the label. The label is about the block that
            is live at the address at that moment.
        address: An address at which a block begins.
        category: One of the names in `category_names`; readers leave out labels with other names.
        device: The number of the device.
    """

    event: int
    address: int
    category: str
    device: int = 0
