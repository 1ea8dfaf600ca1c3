"""Finds the usual values in a group of ranks, and the values beyond them.

Averages and deviations are computed from medians, because a few unusual ranks hardly change a
median.
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
# nine tenths of a normal distribution are within this many standard deviations of its mean
_OF_NINE_IN_TEN = 1.6449
_EXCEPTIONS = 10  # at most one in this many ranks may be an outlier
_FEW = 32  # in smaller groups the median deviation may be small by chance


def middle(values: NDArray[np.float64]) -> float:
    """Returns the median.

    If there are only two values, returns the lower one, because the higher may be unusual.
    """
    return float(np.median(values)) if len(values) > 2 else float(values.min())


def deviation(values: NDArray[np.float64]) -> float:
    """Estimates the standard deviation from the median distance to the median."""
    return _OF_MEDIAN * float(np.median(np.abs(values - middle(values))))


def wide_deviation(values: NDArray[np.float64]) -> float:
    """Estimates the standard deviation from the 0.9 quantile of the distances to the median.

    If the distribution has wide tails, the result is larger than that of `deviation`.
    """
    return float(np.quantile(np.abs(values - middle(values)), 0.9)) / _OF_NINE_IN_TEN


def beyond(values: NDArray[np.float64], least: float, elsewhere: float = 0.0) -> NDArray[np.bool_]:
    """Returns a mask of the values that chance does not explain.

    Args:
        values: The values of a group's ranks.
        least: The least excess over the median; a smaller excess counts as chance.
        elsewhere: The standard deviation over all groups. A small group uses the larger of this
            value and its own standard deviation.
    """
    if len(values) < 2:
        return np.zeros(len(values), dtype=bool)
    own = deviation(values)
    spread = max(own, elsewhere) if len(values) < _FEW else own
    over = values - middle(values)
    # Only the largest values, which `usual` leaves out, may be outliers. If `usual` also has large
    # values, large values are normal in this group.
    usual = np.sort(over)[: len(over) - max(1, len(over) // _EXCEPTIONS)]
    most = max(DEVIATIONS * spread, least)
    found: NDArray[np.bool_] = (over > most) & (
        over - usual.max() > max(2 * spread, float(np.ptp(usual)), least / 2)
    )
    return found
