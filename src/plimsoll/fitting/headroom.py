"""What is to stay free of a card."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from plimsoll.errors import InputError
from plimsoll.units import parse_size

_PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")


@dataclass(frozen=True)
class Headroom:
    """So many bytes, or a part of what there is.

    Attributes:
        size_bytes: The bytes.
        part: Of the card's memory, 0 to 1.
    """

    size_bytes: int = 0
    part: float = 0.0

    @classmethod
    def parse(cls, text: int | str | None) -> Self:
        """From "2GiB", "5%" or bytes.

        Raises:
            InputError: If it is neither.
        """
        if text is None or text in (0, "0"):
            return cls()
        percent = _PERCENT.fullmatch(text) if isinstance(text, str) else None
        if percent is None:
            return cls(size_bytes=parse_size(text))
        part = float(percent[1]) / 100
        if part >= 1:
            raise InputError(f"a headroom of {percent[1]} % leaves nothing of the card")
        return cls(part=part)

    def of(self, total_bytes: int) -> int:
        """In bytes, of a card with so much memory."""
        return self.size_bytes + round(self.part * total_bytes)
