"""The usual values in a group of ranks, and values beyond them.

Averages and deviations are medians, so single unusual ranks hardly move them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEVIATIONS = 6
"""A value this many standard deviations from the median is not chance."""
# the ratio of a normal distribution's standard deviation to its median deviation
_OF_MEDIAN = 1.4826
# standard deviations to each side that contain nine tenths of a normal distribution
_OF_NINE_IN_TEN = 1.6449
_EXCEPTIONS = 10  # one in so many ranks may be an exception
_FEW = 32  # in smaller groups the median deviation may be small by chance


def middle(values: NDArray[np.float64]) -> float:
    """Returns the median; the lower one of two middle values, since either may be unusual."""
    return float(np.median(values)) if len(values) > 2 else float(values.min())


def deviation(values: NDArray[np.float64]) -> float:
    """Returns the standard deviation about the median, from the median deviation."""
    return _OF_MEDIAN * float(np.median(np.abs(values - middle(values))))


def wide_deviation(values: NDArray[np.float64]) -> float:
    """Returns it from the range of nine tenths of the values, for distributions with wide tails."""
    return float(np.quantile(np.abs(values - middle(values)), 0.9)) / _OF_NINE_IN_TEN


def beyond(values: NDArray[np.float64], least: float, elsewhere: float = 0.0) -> NDArray[np.bool_]:
    """Returns a mask of the values that chance does not explain.

    Args:
        values: The values of a group's ranks.
        least: The least excess over the median.
        elsewhere: The standard deviation in other groups, used if this group's is smaller.
    """
    if len(values) < 2:
        return np.zeros(len(values), dtype=bool)
    own = deviation(values)
    spread = max(own, elsewhere) if len(values) < _FEW else own
    over = values - middle(values)
    # More than a few large values are no exceptions.
    usual = np.sort(over)[: len(over) - max(1, len(over) // _EXCEPTIONS)]
    most = max(DEVIATIONS * spread, least)
    found: NDArray[np.bool_] = (over > most) & (
        over - usual.max() > max(2 * spread, float(np.ptp(usual)), least / 2)
    )
    return found
