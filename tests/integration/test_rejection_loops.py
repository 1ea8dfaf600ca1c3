"""Tests that a loop which redraws values ends after few tries, as on a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulated import on_simulated_gpus

torch = pytest.importorskip("torch")

MANY = 1 << 26  # elements: too many for plimsoll to compute their values
FEW_TRIES = 8
"""Allowed iterations of a loop that redraws the numbers beyond ±3 until none is left.

A GPU needs fewer iterations. On average 181,000 of 67 million normal numbers are beyond ±3. The
first redraw leaves 489 of them, and the second leaves 1.3.
"""


def drawn(size: int = MANY) -> Any:
    """Returns normally distributed numbers. They are too many for plimsoll to compute."""
    return torch.empty(size, device="cuda").normal_()


class Tries:
    """Counts a loop's iterations, and fails if they are too many."""

    def __init__(self, most: int = FEW_TRIES) -> None:
        self.count = 0
        self._most = most

    def more(self) -> None:
        """Notes the start of an iteration."""
        self.count += 1
        assert self.count <= self._most


def outside(x: Any) -> Any:
    """Returns a mask of the elements beyond ±3."""
    return (x < -3) | (x > 3)


def by_where(x: Any, mask: Any) -> Any:
    return torch.where(mask, torch.empty_like(x).normal_(), x)


def by_where_of_what_is_kept(x: Any, mask: Any) -> Any:
    return torch.where(~mask, x, torch.randn_like(x))


def by_copy(x: Any, mask: Any) -> Any:
    return x.copy_(torch.where(mask, torch.randn_like(x), x))


def by_mask(x: Any, mask: Any) -> Any:
    x[mask] = torch.randn_like(x)[mask]
    return x


def by_count(x: Any, mask: Any) -> Any:
    x[mask] = torch.randn(int(mask.sum()), device="cuda")
    return x


def by_scatter(x: Any, mask: Any) -> Any:
    return x.masked_scatter_(mask, torch.randn_like(x))


def by_places(x: Any, mask: Any) -> Any:
    places = mask.nonzero().squeeze(1)
    x[places] = torch.randn(places.numel(), device="cuda")
    return x


def by_copied_rows(x: Any, mask: Any) -> Any:
    places = mask.nonzero().flatten()
    return x.index_copy_(0, places, torch.randn(len(places), device="cuda"))


@pytest.mark.parametrize(
    "replace",
    [
        "by_where", "by_where_of_what_is_kept", "by_copy", "by_mask", "by_count", "by_scatter",
        "by_places", "by_copied_rows",
    ],
)  # fmt: skip
@on_simulated_gpus()
def test_what_is_drawn_anew_is_tested_anew(replace: str) -> None:
    tries, x = Tries(), drawn()
    while outside(x).any():
        tries.more()
        x = globals()[replace](x, outside(x))
    assert tries.count > 1


def any_at_all(mask: Any) -> bool:
    return bool(mask.any())


def not_all_others(mask: Any) -> bool:
    return bool(not (~mask).all())


def some_sum(mask: Any) -> bool:
    return bool(mask.sum().item() > 0)


def some_counted(mask: Any) -> bool:
    return int(torch.count_nonzero(mask)) > 0


def some_places(mask: Any) -> bool:
    return bool(mask.nonzero().numel() > 0)


def some_share(mask: Any) -> bool:
    return bool(mask.float().mean().item() > 0)


def largest(mask: Any) -> bool:
    return bool(mask.max())


def compared_on_the_device(mask: Any) -> bool:
    return bool(mask.sum() > 0)


@pytest.mark.parametrize(
    "go_on",
    [
        "any_at_all", "not_all_others", "some_sum", "some_counted", "some_places", "some_share",
        "largest", "compared_on_the_device",
    ],
)  # fmt: skip
@on_simulated_gpus()
def test_a_program_asks_in_its_own_way(go_on: str) -> None:
    tries, x = Tries(), drawn()
    mask = outside(x)
    while globals()[go_on](mask):
        tries.more()
        x = by_where(x, mask)
        mask = outside(x)
    assert tries.count > 1


@on_simulated_gpus()
def test_a_loop_with_a_bound_breaks_before_it() -> None:
    x = drawn()
    for _ in range(FEW_TRIES):
        kept = (x >= -3) & (x <= 3)
        if kept.all():
            break
        x = torch.where(kept, x, torch.randn_like(x))
    else:
        pytest.fail("no round found all within")


@on_simulated_gpus()
def test_conditions_of_what_is_computed_are_followed() -> None:
    tries, x = Tries(64), drawn()
    while ((x - 0.5).abs() > 4).any():
        tries.more()
        x = torch.where((x - 0.5).abs() > 4, torch.randn_like(x), x)
    assert tries.count > 0
    tries, points = Tries(64), torch.rand(MANY // 2, 2, device="cuda") * 2 - 1
    out = points.norm(dim=1) > 1
    while out.any():
        tries.more()
        points[out] = torch.rand(int(out.sum()), 2, device="cuda") * 2 - 1
        out = points.norm(dim=1) > 1
    assert tries.count > 1


@on_simulated_gpus()
def test_what_is_open_stays_so_by_chance() -> None:
    tries, open_ = Tries(64), torch.rand(MANY, device="cuda") < 0.5
    while open_.any():
        tries.more()
        open_ = torch.where(open_, torch.rand(MANY, device="cuda") < 0.5, open_)
    assert tries.count > 10
    tries, done = Tries(64), torch.rand(MANY, device="cuda") < 0.5
    while not done.all():
        tries.more()
        done = torch.where(~done, torch.rand(MANY, device="cuda") < 0.5, done)
    assert tries.count > 10


@on_simulated_gpus()
def test_conditions_that_were_settled_long_ago_are_forgotten_first() -> None:
    for limits in ((5.0, 4.5), (4.0, 3.5), (2.0, 2.5), (1.0, 1.5)):
        tries, x = Tries(5), drawn()
        for limit in limits:
            x = by_where(x, x > limit)
        while (x < -3).any() or (x > 3).any():
            tries.more()
            x = by_where(x, x < -3)
            x = by_where(x, x > 3)
        assert tries.count > 1


@on_simulated_gpus()
def test_other_conditions_are_not_settled_by_one() -> None:
    x = drawn()
    for _ in range(5):
        x = torch.where(x > 3, torch.randn_like(x), x)
    assert (x < -3).any()
    assert (x < 0).sum().item() == pytest.approx(MANY / 2, rel=0.01)
    # The negative numbers are redrawn, and some of the new numbers are beyond 3.
    x = torch.where(x < 0, torch.randn_like(x), x)
    assert (x > 3).any()


@on_simulated_gpus()
def test_what_is_put_there_may_meet_the_condition_too() -> None:
    x = drawn()
    x[x > 0] = 1
    assert (x > 0).sum().item() > MANY / 3
    x = drawn()
    x = torch.where(x > 0, x, 0.01 * x)
    x = torch.where(x > 0, 2 * x, x)
    assert (x > 0).sum().item() > MANY / 3


@pytest.mark.parametrize(("low", "high"), [(-3 / 16, 3 / 16), (0.1, 0.3)])
@on_simulated_gpus()
def test_pytorchs_truncated_normal_numbers_end(low: float, high: float) -> None:
    for rows in (32_000, 200_000):  # plimsoll computes some values of the first, none of the second
        weight = torch.empty(rows, 256, device="cuda")
        torch.nn.init.trunc_normal_(weight, mean=0.0, std=1 / 16, a=low, b=high)


@on_simulated_gpus()
def test_a_loop_that_changes_nothing_known_goes_on_after_a_while() -> None:
    tries = Tries(200)
    x = drawn()
    while outside(x).any():
        tries.more()
        mask = outside(x).float()
        x = x * (1 - mask) + torch.randn_like(x) * mask
    tries, x = Tries(200), drawn()
    while outside(x).any():
        tries.more()
        x.masked_fill_(outside(x), 0)
    tries = Tries(200)
    while (drawn() > 3).any():  # on a GPU this loop would never end
        tries.more()
    assert tries.count > 50
