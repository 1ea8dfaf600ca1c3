"""The part of a recording that is older than its file, if the recording has a size limit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from plimsoll.base.units import format_count, format_duration


@dataclass(frozen=True)
class Earlier:
    """The part of a recording that is not in its file.

    Attributes:
        event_count: The number of events before the file's first one.
        seconds: The time from the recording's first event to the file's first one.
        uncertain_blocks: The number of blocks that may or may not be live at the file's beginning.
            The earlier events and the file's picture of memory disagree on these blocks.
    """

    event_count: int
    seconds: float
    uncertain_blocks: int = 0

    @classmethod
    def from_dict(cls, values: Any) -> Earlier:
        """Makes an `Earlier` from untrusted JSON.

        Raises:
            AttributeError, TypeError or ValueError: If the values are invalid.
        """
        found = cls(**values)
        counts = (found.event_count, found.uncertain_blocks)
        if not all(type(count) is int and count >= 0 for count in counts):
            raise ValueError("the number of earlier events or of uncertain blocks is wrong")
        if type(found.seconds) not in (int, float) or not 0 <= found.seconds < math.inf:
            raise ValueError("the time of earlier events is wrong")
        return found

    def problems(self) -> list[str]:
        """Returns a sentence for what the file lacks, and one for what is uncertain in it."""
        found = [
            f"the first {format_duration(self.seconds)} ({format_count(self.event_count, 'event')})"
            " are not in this file: the recording has a limit"
        ]
        if self.uncertain_blocks:
            count = format_count(self.uncertain_blocks, "block")
            found.append(f"{count} may be wrong at its beginning: the program went on meanwhile")
        return found
