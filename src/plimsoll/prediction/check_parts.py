"""The result of comparing a prediction with a recording, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Held:
    """The bytes that one source line, or all requests of one size, hold at the two peaks.

    Attributes:
        what: The line, "file:line function", or the size.
        predicted_bytes: Bytes requested and live at the predicted peak.
        recorded_bytes: Bytes requested and live at the recorded peak.
    """

    what: str
    predicted_bytes: int
    recorded_bytes: int

    @property
    def difference_bytes(self) -> int:
        """Predicted minus recorded bytes."""
        return self.predicted_bytes - self.recorded_bytes


@dataclass(frozen=True)
class CheckParts:
    """A prediction and a recording of the same program, each on its fullest device.

    Attributes:
        script: The script.
        recording: The file.
        gpu: The card of the prediction.
        matches: Whether the peak of reserved memory and the peak of allocated memory each differ by
            no more than `tolerance`.
        tolerance: The tolerance as a part of the recorded peak, such as 0.02.
        predicted_reserved_bytes: The most bytes that the prediction reserves from the driver.
        recorded_reserved_bytes: The most bytes that a replay of the recording reserves.
        predicted_allocated_bytes: The most bytes in live blocks in the prediction.
        recorded_allocated_bytes: The most bytes in live blocks in a replay of the recording.
        predicted_requests: The number of predicted requests for memory.
        recorded_requests: The number of recorded requests.
        held_by: The key of `held`: "line", or "size" if the recording has no call stacks.
        held: The lines or sizes whose bytes differ between the two peaks, the largest difference
            first.
        reasons: The known reasons for the differences, a sentence each.
    """

    script: str
    recording: str
    gpu: str
    matches: bool
    tolerance: float
    predicted_reserved_bytes: int
    recorded_reserved_bytes: int
    predicted_allocated_bytes: int
    recorded_allocated_bytes: int
    predicted_requests: int
    recorded_requests: int
    held_by: str
    held: list[Held]
    reasons: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON, in base units and with stable keys."""
        return asdict(self)
