"""What a group of ranks takes for usual, and what is beyond it.

Middles and deviations are medians, so that single ranks that are different hardly move them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEVIATIONS = 6
"""So many standard deviations from the middle are not chance."""
_OF_MEDIAN = 1.4826  # a normal distribution's standard deviation, by its median of deviations
_OF_NINE_IN_TEN = 1.6449  # so many standard deviations to each side have nine in ten of its values
_EXCEPTIONS = 10  # one of so many may be different
_FEW = 32  # with fewer, the median of deviations may be small by chance


def middle(values: NDArray[np.float64]) -> float:
    """The usual value; of two, the lower one, as nothing says which is unusual."""
    return float(np.median(values)) if len(values) > 2 else float(values.min())


def deviation(values: NDArray[np.float64]) -> float:
    """About the middle, as a standard deviation."""
    return _OF_MEDIAN * float(np.median(np.abs(values - middle(values))))


def wide_deviation(values: NDArray[np.float64]) -> float:
    """The same by where nine in ten of the values lie, of what has wide tails."""
    return float(np.quantile(np.abs(values - middle(values)), 0.9)) / _OF_NINE_IN_TEN


def beyond(values: NDArray[np.float64], least: float, elsewhere: float = 0.0) -> NDArray[np.bool_]:
    """Which values are more than chance explains.

    Args:
        values: Of the ranks of a group.
        least: What a value has to be more than the middle in any case.
        elsewhere: The standard deviation in other groups, which counts where this one is small.
    """
    if len(values) < 2:
        return np.zeros(len(values), dtype=bool)
    own = deviation(values)
    spread = max(own, elsewhere) if len(values) < _FEW else own
    over = values - middle(values)
    # More than a few are no exceptions.
    usual = np.sort(over)[: len(over) - max(1, len(over) // _EXCEPTIONS)]
    most = max(DEVIATIONS * spread, least)
    found: NDArray[np.bool_] = (over > most) & (
        over - usual.max() > max(2 * spread, float(np.ptp(usual)), least / 2)
    )
    return found
