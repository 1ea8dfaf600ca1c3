"""The largest value of an argument with which a script fits a card."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from plimsoll.errors import InputError
from plimsoll.predict.predict import predict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike

    from plimsoll.predict.result import Prediction

_MOST = 1 << 30


@dataclass(frozen=True)
class Fit:
    """What was found for one card.

    Attributes:
        gpu: The card.
        vary: The argument.
        largest: The largest value that fits; None if not even 1 does.
        curve: Value, whether it fits, bytes used on the device (up to the failure, where it does
            not fit): every value that was tried, sorted.
        seconds: Time that the predictions took.
    """

    gpu: str
    vary: str
    largest: int | None
    curve: list[tuple[int, bool, int]]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **asdict(self),
            "curve": [
                {"value": value, "fits": fits, "device_used_bytes": used}
                for value, fits, used in self.curve
            ],
        }


def fit(
    script: str | PathLike[str],
    vary: str,
    arguments: Sequence[str] = (),
    *,
    gpu: str = "H100",
    start: int = 1,
    most: int = _MOST,
    progress: Callable[[int, bool | None], None] | None = None,
    **options: Any,
) -> Fit:
    """Find the largest value of `vary` with which a script fits, by doubling and bisection.

    Args:
        script: A Python file.
        vary: An argument that takes a number, such as "--batch-size".
        arguments: The script's other arguments.
        gpu: The card.
        start: The value to begin with.
        most: No value above it is tried.
        progress: Called with a value before it is tried (None) and after it (whether it fits).
        options: As `predict` takes them.

    Raises:
        InputError: If an argument is bad, or memory does not depend on `vary`.
        ScriptError: If the script fails for another reason than memory.
    """
    if start < 1 or most < start:
        raise InputError("values to try start at 1 or above, and end above the start")
    tried: dict[int, Prediction] = {}

    def fits(value: int) -> bool:
        if value not in tried:
            if progress is not None:
                progress(value, None)
            tried[value] = predict(
                script, [*arguments, vary, str(value)], gpu=gpu, measure_need=False, **options
            )
            if progress is not None:
                progress(value, tried[value].fits)
        return tried[value].fits

    low, high = _bracket(fits, start, most)
    _check_depends(tried, vary)
    while low is not None and high is not None and high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    curve = [(value, one.fits, one.device_used_bytes) for value, one in sorted(tried.items())]
    name = next(iter(tried.values())).gpu
    return Fit(name, vary, low, curve, sum(one.seconds for one in tried.values()))


def _bracket(fits: Callable[[int], bool], start: int, most: int) -> tuple[int | None, int | None]:
    """A value that fits and one that does not; None where there is none."""
    if not fits(start):
        low, high = start, start
        while low > 1:
            low, high = low // 2, low
            if fits(low):
                return low, high
        return None, start
    low = start
    while low < most:
        high = min(2 * low, most)
        if not fits(high):
            return low, high
        low = high
        if low >= 64 * start and low >= 4096:  # nobody's batch; is it looked at?
            break
    return low, None


def _check_depends(tried: dict[int, Prediction], vary: str) -> None:
    used = {one.device_used_bytes for one in tried.values()}
    if len(tried) > 1 and len(used) == 1 and all(one.fits for one in tried.values()):
        raise InputError(f"memory does not depend on {vary}: {len(tried)} values need the same")
