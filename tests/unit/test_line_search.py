"""Tests what a program sees of the changed step of L-BFGS."""

from __future__ import annotations

import copy
import math
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from plimsoll.torch.simulated.line_search import let_search_go_on


class _Gradient:
    is_cuda = True


class _Optimizer:
    def __init__(self) -> None:
        self.param_groups = [{"tolerance_change": 1e-9}]

    def _gather_flat_grad(self) -> _Gradient:
        return _Gradient()

    def step(self, closure: Any) -> Any:
        self._gather_flat_grad()
        return closure(self.param_groups[0]["tolerance_change"])


def optimizer(*, is_known: bool, plain: type = _Gradient) -> Any:
    """Returns an optimizer with the changed step."""
    changed = type("Changed", (_Optimizer,), {})
    torch: Any = SimpleNamespace(
        optim=SimpleNamespace(LBFGS=changed),
        Tensor=plain,
        ops=SimpleNamespace(plimsoll=SimpleNamespace(is_known=lambda _: is_known)),
    )
    let_search_go_on(torch)
    return changed()


def test_any_slope_is_below_the_limit_only_if_the_gradient_is_unknown() -> None:
    assert optimizer(is_known=False).step(lambda limit: -limit) == math.inf
    assert optimizer(is_known=True).step(lambda limit: -limit) == -1e-9
    assert optimizer(is_known=False, plain=int).step(lambda limit: -limit) == -1e-9


def test_copies_of_the_settings_are_plain_numbers() -> None:
    made = optimizer(is_known=False)
    copied = made.step(lambda limit: (copy.deepcopy(limit), pickle.loads(pickle.dumps(limit))))
    assert [type(each) for each in copied] == [float, float]


def test_the_optimizer_is_as_before_after_a_step_that_fails() -> None:
    def fail(_: Any) -> None:
        raise ValueError

    made = optimizer(is_known=False)
    for own in ({}, {"_gather_flat_grad": _Gradient}):
        vars(made).update(own)
        with pytest.raises(ValueError):  # noqa: PT011
            made.step(fail)
        assert vars(made) == {"param_groups": [{"tolerance_change": 1e-9}], **own}
        assert type(made.param_groups[0]["tolerance_change"]) is float
