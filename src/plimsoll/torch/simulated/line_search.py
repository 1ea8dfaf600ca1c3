"""Lets L-BFGS go on if its gradients were not computed.

L-BFGS ends a step early if the loss does not fall along its search direction. It tests the sign of
a product of the gradient and the direction. If the gradient is unknown, so is the sign, although
the loss falls in a healthy run.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType


class _Tolerance(float):
    """The limit of L-BFGS for changes, whose negative is the limit for a slope.

    Attributes:
        is_slope_known: Whether the slope that L-BFGS compares with the limit was computed.
    """

    is_slope_known = False

    def __neg__(self) -> float:
        return -float(self) if self.is_slope_known else math.inf

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        # The program may copy or save the optimizer's settings in its closure.
        return float, (float(self),)


def let_search_go_on(torch: ModuleType) -> None:
    """Makes `torch.optim.LBFGS` take an unknown slope along its search direction as negative."""
    step = torch.optim.LBFGS.step

    @functools.wraps(step)
    def searching(self: Any, closure: Any) -> Any:
        group, gather = self.param_groups[0], self._gather_flat_grad
        replaced = vars(self).get("_gather_flat_grad")
        given = group["tolerance_change"]
        tolerance = group["tolerance_change"] = _Tolerance(given)

        def gather_flat_grad() -> Any:
            gradient = gather()
            # `is_known` knows no subclasses, such as DTensor.
            is_plain = type(gradient) is torch.Tensor and gradient.is_cuda
            tolerance.is_slope_known = not is_plain or torch.ops.plimsoll.is_known(gradient)
            return gradient

        self._gather_flat_grad = gather_flat_grad
        try:
            return step(self, closure)
        finally:
            group["tolerance_change"] = given
            if replaced is None:
                del self._gather_flat_grad
            else:
                self._gather_flat_grad = replaced

    torch.optim.LBFGS.step = searching
