"""Tests which of a step's saved storages leave the card. Earlier steps decide this."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.base.units import GiB, MiB
from plimsoll.offloading.plan import Plan

BUDGET = 4 * GiB


@dataclass
class Program:
    """A training step: storages are saved in order and used in reverse order.

    The step also holds `transient` bytes of temporary memory after each save and during each use.
    """

    sizes: list[int]
    transient: int = 0
    growth: int = 0  # bytes of gradients that each use adds
    early: list[int] = field(default_factory=list)
    expected: list[int | None] = field(default_factory=list)
    coming: list[int] = field(default_factory=list)

    def step(self, plan: Plan, base: int) -> Program:
        """Runs a step. Keeps the plan's answers in `early`, `expected` and `coming`."""
        self.early, self.expected, self.coming = [], [], []
        plan.begin(base)
        for index, size in enumerate(self.sizes):
            assert plan.save(size) == index
            if plan.leaves(index):
                self.early.append(index)
            self.expected.append(plan.expected())
            plan.measure(base + self.transient)
        self.coming = [storage for _, storage in plan.coming(0)]
        grown = 0
        for index, size in reversed(list(enumerate(self.sizes))):
            plan.use(index, size)
            self.expected.append(plan.expected())
            grown += self.growth
            plan.measure(base + self.transient + grown)
            plan.drop(index)
        plan.begin(base)  # ends the step
        return self


def test_nothing_is_known_of_the_first_step() -> None:
    first = Program([GiB] * 3).step(Plan(BUDGET), 0)
    assert first.early == []
    assert first.coming == []
    assert set(first.expected) == {None}


def test_an_equal_step_is_known_above_its_own_beginning() -> None:
    plan = Plan(BUDGET)
    program = Program([GiB] * 3, transient=100, growth=10)
    program.step(plan, 0)
    again = program.step(plan, 5000)
    assert again.coming == [2, 1, 0]
    # After the step's last event, the plan expects the memory with which the next step begins.
    assert again.expected == [5100] * 3 + [5110, 5120, 5000]


def test_the_rest_of_the_forward_pass_is_known_at_once() -> None:
    plan = Plan(BUDGET)
    expected: list[int | None] = []
    for base in (0, GiB):
        plan.begin(base)
        expected = []
        for taken in (MiB, 5 * MiB, 2 * MiB):
            plan.save(GiB)
            expected.append(plan.expected_of_forward())
            plan.measure(base + taken)
        for index in (2, 1, 0):
            plan.use(index, GiB)
            expected.append(plan.expected_of_forward())
            plan.measure(base + 9 * MiB)
    # At each save the plan expects the peak of the rest of the forward pass, and at each use the
    # peak until the next event. After the last use no storage is left to move, so it expects
    # nothing above `base`.
    assert expected == [GiB + most * MiB for most in (5, 5, 2, 9, 9, 0)]


def test_as_much_leaves_early_as_the_budget_lacks_and_the_first_saved() -> None:
    plan = Plan(BUDGET)
    program = Program([256 * MiB] * 20)
    program.step(plan, 0)
    # The program saves 5 GiB. The budget is 4 GiB minus a margin of 8 MiB, so 1 GiB and 8 MiB must
    # leave. The first four storages are 1 GiB. The fifth is too large to leave for only 8 MiB.
    assert program.step(plan, 0).early == [0, 1, 2, 3]
    assert program.step(plan, GiB).early == [*range(8)]
    assert program.step(plan, 2 * GiB).early == [*range(12)]


def test_nothing_leaves_where_there_is_room() -> None:
    plan = Plan(BUDGET)
    program = Program([GiB] * 3)
    program.step(plan, 0)
    assert program.step(plan, GiB // 2).early == []


def test_what_the_program_holds_is_not_sent_away() -> None:
    plan = Plan(BUDGET)
    plan.begin(0)
    for _ in range(6):
        plan.save(GiB)
    plan.hold([0, 1, -5, 77])
    for index in reversed(range(6)):
        plan.use(index, GiB)
    assert Program([GiB] * 6).step(plan, 0).early == [2, 3]


def test_a_storage_that_only_lends_its_shape_is_gone_before_its_use() -> None:
    plan = Plan(BUDGET)
    plan.begin(0)
    plan.save(GiB)
    plan.save(3 * GiB - 16 * MiB)
    plan.measure(0)
    plan.drop(1)
    plan.use(1, 3 * GiB - 16 * MiB)
    plan.measure(3 * GiB - 16 * MiB)  # the recomputed tensors are as large as storage 1
    plan.use(0, GiB)
    plan.begin(0)
    plan.save(GiB)
    assert not plan.leaves(0)


def test_what_nobody_reads_is_not_copied() -> None:
    plan = Plan(BUDGET)
    for _ in range(2):
        plan.begin(0)
        for index in range(2):
            plan.save(3 * GiB)
            plan.measure(0)
            leaves = plan.leaves(index)
        plan.discard(1)
        for index in (1, 0):
            plan.use(index, 3 * GiB)
            plan.measure(0)
    assert not leaves


def test_a_smaller_batch_is_bounded_by_a_larger_one() -> None:
    plan = Plan(BUDGET)
    Program([GiB] * 6, transient=100).step(plan, 0)
    smaller = Program([GiB // 2] * 6, transient=50).step(plan, 0)
    assert smaller.expected == [100] * 11 + [0]
    assert smaller.step(plan, 0).expected == [50] * 11 + [0]


def test_a_larger_batch_is_not_known() -> None:
    plan = Plan(BUDGET)
    Program([GiB // 2] * 6).step(plan, 0)
    assert set(Program([GiB] * 6).step(plan, 0).expected) == {None}


def test_where_a_step_departs_nothing_is_known_until_it_ends() -> None:
    plan = Plan(BUDGET)
    Program([GiB] * 3).step(plan, 0)
    departing = Program([GiB, GiB, 2 * GiB]).step(plan, 0)
    assert departing.expected == [0, 0, None, None, None, None]
    assert departing.coming == []


def test_a_step_that_departs_to_another_known_one_is_known() -> None:
    plan = Plan(BUDGET)
    short, long = Program([GiB] * 3), Program([GiB] * 5)
    short.step(plan, 0)
    long.step(plan, 0)
    for _ in range(2):
        assert None not in short.step(plan, 0).expected
        assert None not in long.step(plan, 0).expected


def test_the_most_of_equal_steps_is_expected() -> None:
    """Runs four micro-batches per step; only the first allocates gradients."""
    plan = Plan(BUDGET)
    for _ in range(3):
        for growth in (MiB, 0, 0, 0):
            step = Program([GiB] * 3, growth=growth).step(plan, 0)
    assert step.expected[3:5] == [MiB, 2 * MiB]


def test_what_was_once_is_forgotten() -> None:
    plan = Plan(BUDGET)
    Program([GiB] * 3, transient=GiB).step(plan, 0)
    usual = Program([GiB] * 3, transient=MiB)
    for _ in range(40):
        usual.step(plan, 0)
    assert usual.expected[0] == MiB


def test_a_forward_pass_alone_is_not_a_step() -> None:
    plan = Plan(BUDGET)
    Program([GiB] * 3).step(plan, 0)
    for _ in range(20):
        plan.begin(0)
        plan.save(GiB)
    assert Program([GiB] * 3).step(plan, 0).coming == [2, 1, 0]


def test_a_plan_keeps_away_from_a_budget_that_has_no_room_in_one_piece() -> None:
    plan = Plan(BUDGET)
    before = plan.limit
    plan.keep_away(64 * MiB)
    assert plan.limit == before - 64 * MiB
    plan.keep_away(100 * GiB)
    assert plan.limit == BUDGET - GiB


def test_a_use_of_an_earlier_steps_storage_is_not_known() -> None:
    plan = Plan(BUDGET)
    program = Program([GiB] * 2)
    program.step(plan, 0)
    plan.begin(0)
    plan.save(GiB)
    plan.use(-1, GiB)
    plan.drop(-1)
    assert plan.expected() is None


@given(
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=30),
    budget=st.integers(1, 20_000),
    base=st.integers(0, 10_000),
    transient=st.integers(0, 5_000),
)
def test_what_leaves_early_is_never_more_than_needed_by_a_storage(
    sizes: list[int], budget: int, base: int, transient: int
) -> None:
    plan = Plan(budget)
    program = Program(sizes, transient=transient)
    program.step(plan, 0)
    early = program.step(plan, base).early
    excess = base + transient + sum(sizes) - plan.limit
    assert sum(sizes[index] for index in early) < max(excess, 0) + max(sizes)
    if not early:
        assert 4 * excess <= max(sizes)
    assert early == sorted(early)


@given(st.integers(1, 2**40))
def test_buffers_come_in_eight_sizes_between_powers_of_two(size: int) -> None:
    pytest.importorskip("torch")
    from plimsoll.offloading.pinned import rounded

    taken = rounded(size)
    assert size <= taken
    assert taken <= max(size + size // 4, MiB)
    assert rounded(taken) == taken


def test_without_a_gpu_offload_changes_nothing() -> None:
    torch = pytest.importorskip("torch")
    import plimsoll

    x = torch.randn(1024, 1024, requires_grad=True)

    @plimsoll.offload("1MiB")
    def squared() -> object:
        return (x * x).sum()

    loss = squared()
    loss.backward()  # type: ignore[attr-defined]
    assert torch.equal(x.grad, 2 * x)
    assert plimsoll.offload("1MiB").statistics().out_bytes == 0


@pytest.mark.parametrize("budget", [0, -1, "", "6 GiBi", "-1GiB", "0"])
def test_a_budget_is_a_size_above_zero(budget: int | str) -> None:
    pytest.importorskip("torch")
    import plimsoll

    with pytest.raises(plimsoll.InputError):
        plimsoll.offload(budget)
