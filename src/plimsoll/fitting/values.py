"""The largest value of an argument with which a script fits a card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plimsoll.errors import InputError, ScriptError
from plimsoll.fitting.parts import Trial
from plimsoll.fitting.results import Fit
from plimsoll.prediction.options import Options
from plimsoll.prediction.predict import predict_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from os import PathLike

    from plimsoll.prediction.parts import Written
    from plimsoll.prediction.results import Prediction

_PATIENCE = 10  # doublings without a byte more; a batch of 1024 shows in any program's memory


def fit(
    script: str | PathLike[str],
    vary: str,
    arguments: Sequence[str] = (),
    *,
    module: bool = False,
    gpu: str = "H100",
    start: int = 1,
    at_most: int | None = None,
    progress: Callable[[int, bool | None], None] | None = None,
    **options: Any,
) -> Fit:
    """Find the largest value of `vary` with which a script fits, by doubling and bisection.

    The search ends before something does not fit where memory stops growing, or where the script
    fails with a larger value; `Fit.stopped` says so. The script's output is shown, on stderr, only
    when it fails.

    >>> import plimsoll
    >>> plimsoll.fit("train.py", "--batch-size", gpu="RTX 4090").largest  # doctest: +SKIP
    48

    Args:
        script: A Python file, or with `module` a module's name.
        vary: An argument that takes a number, such as "--batch-size".
        arguments: The script's other arguments.
        module: As `predict` takes it.
        gpu: The card.
        start: The value to begin with.
        at_most: No value above it is tried; None for no such bound.
        progress: Called with a value before it is tried (None) and after it (whether it fits).
        options: As `predict` takes them.

    Raises:
        InputError: If an argument is bad, or memory does not depend on `vary`.
        ScriptError: If the script fails for another reason than memory before it fits once.
    """
    if start < 1 or (at_most is not None and at_most < start):
        raise InputError("the values to try begin at 1 or above, and end where they begin or above")
    asked = Options(gpu, **options)
    tried: dict[int, Prediction] = {}

    def fits(value: int) -> bool:
        request = asked.request(script, [*arguments, vary, str(value)], is_module=module)
        if progress is not None:
            progress(value, None)
        try:
            found = predict_request(request, measure_need=False, shows_output=False)
        except ScriptError:
            if not any(one.fits for one in tried.values()):
                raise
            raise _Stopped(f"with {vary} {value} the script fails") from None
        if not found.uses_cuda:
            raise InputError(str(found).splitlines()[0].removesuffix("."))
        tried[value] = found
        if progress is not None:
            progress(value, found.fits)
        return found.fits

    stopped = None
    try:
        low, high = 0, start
        while fits(high):
            low, high = high, _next(tried, vary, at_most)
        while high - low > 1:
            middle = (low + high) // 2
            if fits(middle):
                low = middle
            else:
                high = middle
    except _Stopped as stop:
        stopped = str(stop)
    values = sorted(tried)
    return Fit(
        gpu=tried[start].gpu,
        vary=vary,
        largest=max((value for value in values if tried[value].fits), default=None),
        stopped=stopped,
        curve=[
            Trial(
                value,
                tried[value].fits,
                tried[value].device_used_bytes,
                tried[value].step_seconds if tried[value].fits else None,
                tried[value].host_peak_bytes,
                tried[value].host_peak_range_bytes,
            )
            for value in values
        ],
        seconds=sum(one.seconds for one in tried.values()),
        written=_written(tried.values()),
    )


class _Stopped(Exception):  # noqa: N818
    """The search ends before a value was found that does not fit; the text says why."""


def _next(tried: dict[int, Prediction], vary: str, at_most: int | None) -> int:
    """The value to try after those that all fit."""
    *earlier, last = tried
    if last == at_most:
        raise _Stopped(f"no value above {at_most} was asked for")
    need = tried[last].requested_bytes  # rounding hides how small values differ
    same_since = last
    for value in reversed(earlier):
        if tried[value].requested_bytes != need:
            break
        same_since = value
    if last >= same_since << _PATIENCE:
        if same_since == next(iter(tried)):
            raise InputError(
                f"memory does not depend on {vary}: {same_since} to {last} need the same"
            )
        raise _Stopped(f"memory is the same from {vary} {same_since} on")
    return 2 * last if at_most is None else min(2 * last, at_most)


def _written(trials: Iterable[Prediction]) -> list[Written]:
    """All that was written, the largest first; a path once, as large as it ever was."""
    largest: dict[str, Written] = {}
    for one in (one for trial in trials for one in trial.written):
        before = largest.get(one.path)
        if before is None or before.bytes < one.bytes:
            largest[one.path] = one
    return sorted(largest.values(), key=lambda one: (-one.bytes, one.path))
