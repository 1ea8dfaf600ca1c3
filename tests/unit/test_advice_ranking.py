"""Tests the order of advice, and the costs that decide it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.base.units import GiB, MiB
from plimsoll.engine.replays.replay import replay
from plimsoll.explanation.explain import explain
from plimsoll.explanation.kept_advice import KeptAdvice
from plimsoll.explanation.parts import Advice, AdviceKind
from plimsoll.explanation.ranking import COSTS, ranked
from plimsoll.explanation.search import Setting, Trial
from plimsoll.explanation.text import _details
from plimsoll.recordings.causes.cause import Cause
from tests.unit.test_explanation import nine_blocks, recorded

if TYPE_CHECKING:
    from plimsoll import Allocator

ADVICE = Advice("setting", "do this", "this", "nothing", GiB, GiB)
SIZES = st.integers(0, 3)  # few sizes, so that some are equal
PIECES = st.builds(
    Advice,
    kind=st.sampled_from(get_args(AdviceKind)),
    what=st.just("do this"),
    how=st.just("this"),
    cost=st.sampled_from(COSTS),
    saves_bytes=SIZES,
    peak_reserved_bytes=SIZES,
    peak_reserved_range_bytes=st.none(),
    peak_dedicated_bytes=st.none() | SIZES,
    serves_failed_requests=st.sampled_from([None, True, False]),
    num_alloc_retries=SIZES,
    driver_seconds=st.sampled_from([-1.0, 0.0, 1.0]),
)


def comes_before(one: Advice, other: Advice) -> bool | None:
    """Returns whether the rule puts `one` before `other`; None if either may come first."""
    fails = [each.serves_failed_requests is False for each in (one, other)]
    if fails[0] != fails[1]:
        return fails[1]
    leaks = [each.kind == "leak" for each in (one, other)]
    if leaks[0] != leaks[1]:
        return leaks[0]
    if one.cost != other.cost:
        return COSTS.index(one.cost) < COSTS.index(other.cost)
    if one.saves_bytes != other.saves_bytes:
        return one.saves_bytes > other.saves_bytes
    return None


@given(st.lists(PIECES, max_size=8), st.randoms())
def test_advice_is_in_the_order_of_the_rule_whatever_it_came_in(
    advice: list[Advice], random: object
) -> None:
    found = ranked(advice)
    assert sorted(map(repr, found)) == sorted(map(repr, advice))
    for place, one in enumerate(found):
        assert all(comes_before(one, other) is not False for other in found[place:])
    shuffled = list(advice)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    places = [(one.kind == "leak", one.cost, one.saves_bytes) for one in found]
    assert places == [(one.kind == "leak", one.cost, one.saves_bytes) for one in ranked(shuffled)]


def cached_and_kept(allocator: Allocator) -> None:
    """Leaves 101 MiB live and 100 MiB cached.

    If a limit on memory leaves no room for both, the allocator releases the cached memory first.
    """
    allocator.free(allocator.malloc("100MiB"))  # stays cached, too small for the next request
    allocator.malloc("101MiB")


def test_a_limit_of_the_programs_own_comes_before_spilling() -> None:
    found = explain(recorded(cached_and_kept), limit="210MiB")
    kinds = [one.kind for one in found.advice]
    assert kinds.index("limit") < kinds.index("spill") == len(kinds) - 1
    costs = {one.kind: one.cost for one in found.advice}
    assert (costs["limit"], costs["spill"]) == ("time", "bus")
    limit, spill = (next(one for one in found.advice if one.kind == kind)
                    for kind in ("limit", "spill"))  # fmt: skip
    assert limit.num_alloc_retries > 0
    assert limit.saves_bytes < spill.saves_bytes


def test_what_serves_a_failed_request_is_ordered_by_its_cost() -> None:
    found = explain(recorded(nine_blocks), limit="512MiB")
    assert all(one.serves_failed_requests for one in found.advice)
    costs = [COSTS.index(one.cost) for one in found.advice]
    assert costs == sorted(costs)
    assert found.advice[0].kind == "limit"
    assert found.advice[-1].kind == "spill"


def test_a_card_that_is_nearly_empty_needs_no_setting_and_none_of_the_hosts_memory() -> None:
    assert explain(recorded(cached_and_kept), gpu="H100").advice == []
    kinds = {one.kind for one in explain(recorded(cached_and_kept), gpu="H100:1GiB").advice}
    assert "limit" in kinds
    assert "spill" not in kinds


def test_nobody_needs_host_memory_where_nothing_says_that_the_card_lacks_memory() -> None:
    def kinds(limit: str | None) -> set[str]:
        return {one.kind for one in explain(recorded(cached_and_kept), limit=limit).advice}

    assert "spill" not in kinds(None)
    assert "spill" not in kinds("8GiB")
    assert "spill" in kinds("210MiB")


@pytest.mark.parametrize("gpu", [None, "H100:1GiB"])
def test_each_piece_is_one_line_and_one_thing_to_copy(gpu: str | None) -> None:
    found = explain(recorded(cached_and_kept), gpu=gpu)
    for one in found.advice:
        assert one.what
        assert one.how
        assert "\n" not in one.what + one.how
        if not one.how.startswith(("PYTORCH_", "plimsoll ")):
            compile(one.how, "advice", "exec")
    lines = str(found).partition("\nAdvice")[2].partition("\n\n")[0].splitlines()[1:-1]
    assert len(lines) == 3 * len(found.advice)
    for one, (what, how, details) in zip(
        found.advice, zip(*[iter(lines)] * 3, strict=True), strict=True
    ):
        assert what[5:].startswith(f"{one.what}: saves ")
        assert how == f"     {one.how}"
        assert "reserved" in details
        assert max(len(what), len(details)) <= 100


@pytest.mark.parametrize("total_bytes", [None, 80 << 30])
def test_a_setting_under_a_limit_is_one_thing_to_copy(total_bytes: int | None) -> None:
    (base,) = replay(recorded(nine_blocks))
    found = KeptAdvice(base, failed=False, total_bytes=total_bytes)
    how = found.call(Setting("expandable_segments:True", 8 << 30))
    if total_bytes:
        conf = "expandable_segments:True,per_process_memory_fraction:0.100000"
        assert how == f"PYTORCH_CUDA_ALLOC_CONF={conf}"
    else:
        first, second = how.split("; ")
        assert first == 'torch.cuda.memory._set_allocator_settings("expandable_segments:True")'
        most = "8589934593 / torch.cuda.mem_get_info()[1]"
        assert second == f"torch.cuda.set_per_process_memory_fraction({most})"


def test_returned_memory_is_a_cost_where_there_is_more_of_it_than_before() -> None:
    (base,) = replay(recorded(cached_and_kept))

    def cost(retries: int, limit: int | None = None) -> str:
        found = KeptAdvice(base, failed=False, total_bytes=None)
        tried = replace(base, peak_reserved_bytes=2 * MiB, num_alloc_retries=retries)
        found.add("setting", "do this", "this", Trial(Setting("", limit), tried))
        return found.advice[0].cost

    assert base.num_alloc_retries == 0
    assert [cost(0), cost(1), cost(0, 100 * MiB)] == ["nothing", "time", "time"]


def test_times_of_advice_have_a_scale() -> None:
    slow = replace(ADVICE, driver_seconds=0.5)
    spills = replace(slow, bus_seconds=0.2)
    assert "about 0.500 s slower (+5.0% of the run)" in _details(slow, 10.0)
    copies = "at least 0.700 s slower (+7.0% of the run)"
    assert copies in _details(spills, 10.0)
    assert "about 0.500 s faster (-5.0% of the run)" in _details(
        replace(ADVICE, driver_seconds=-0.5), 10.0
    )
    assert "about 0.500 s slower (more than the run)" in _details(slow, 0.1)
    assert "about 0.500 s slower (the run's length is unknown)" in _details(slow, None)
    assert len([*_details(ADVICE, None)]) == 1


def test_a_change_that_saved_less_than_a_fiftieth_hardly_helps() -> None:
    cause = Cause("logits", "", "", GiB)
    assert not cause.hardly_helps(GiB)
    assert replace(cause, saves_bytes=GiB // 100).hardly_helps(GiB)
    assert not replace(cause, saves_bytes=GiB // 10).hardly_helps(GiB)
    assert not replace(cause, saves_bytes=0, growth_bytes=1).hardly_helps(GiB)
