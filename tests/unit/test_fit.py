"""Tests which values `plimsoll.fit` tries, and when it gives a range instead of one value."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import booleans, floats, integers, sampled_from

from plimsoll import InputError, ScriptError
from plimsoll.base.telemetry.nvml import GpuReading, Nvml, Reading
from plimsoll.base.units import GiB, MiB
from plimsoll.engine.gpus.profiles import gpu_profile
from plimsoll.prediction.allocator_need import AllocatorNeed
from plimsoll.prediction.assumed import (
    LETS_GO_LATER,
    READS_UNKNOWN,
    SIZES_BY_DATA,
    WORKSPACES,
    Assumed,
)
from plimsoll.prediction.fitting import values
from plimsoll.prediction.fitting.accepted_steps import accepted_step
from plimsoll.prediction.fitting.bracket import MOST_RUNS
from plimsoll.prediction.fitting.estimates import crossing
from plimsoll.prediction.fitting.headroom import Headroom
from plimsoll.prediction.fitting.parts import FitParts, Trial
from plimsoll.prediction.fitting.results import Fit
from plimsoll.prediction.fitting.side_by_side import Outcome
from plimsoll.prediction.fitting.text import fit_text, trial_text
from plimsoll.prediction.fitting.values import fit
from plimsoll.prediction.fitting.varied_argument import take_out
from plimsoll.prediction.options import Options
from plimsoll.prediction.parts import INTERRUPTED, StepTime
from plimsoll.prediction.results import Prediction
from plimsoll.prediction.survey import ArgumentUse, Survey
from plimsoll.prediction.trials.written import Written
from plimsoll.prediction.used_memory import used_memory
from plimsoll.torch.simulated.library import BEYOND_BUDGET

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plimsoll.prediction.request import Request

    Need = Callable[[int], int]
    Change = Callable[[Prediction, bool], Prediction]
    Search = Callable[..., tuple[Fit, "Runs"]]

pytest.importorskip("torch")
CARD = gpu_profile("T4")


def prediction(need_bytes: int, used_bytes: int = 0) -> Prediction:
    """Returns the prediction for a script that needs `need_bytes`."""
    total = CARD.total_bytes - used_bytes
    allocated = -(-need_bytes // (2 * MiB)) * 2 * MiB
    used = allocated + CARD.context_bytes
    return Prediction(
        script="script.py", gpu="T4", driver="linux", allocator="native", policy="strict",
        conf="", torch="2.13", total_bytes=total, used_bytes=used_bytes,
        context_bytes=CARD.context_bytes,
        peak_allocated_bytes=allocated, peak_reserved_bytes=allocated, device_used_bytes=used,
        shared_used_bytes=0, plan=None, shared=None, shared_by_category={}, shared_lines=[],
        fits=used <= total, headroom_bytes=total - used,
        peak_allocated_range_bytes=None, peak_reserved_range_bytes=None, stopped=None,
        out_of_memory=None, num_ooms=0, by_category={"rounding": allocated - need_bytes},
        top_lines=[],
        step_peaks_bytes=[], step_seconds=None, step_seconds_range=None, step=None,
        other_cards=[], assumptions=[], written=[],
        uses_cuda=need_bytes > 0, events=2, seconds=1.0,
    )  # fmt: skip


def test_what_was_written_is_listed_as_far_as_there_is_room() -> None:
    found = replace(prediction(2 * MiB), written=[Written("a.pt", 3 * MiB, "changed")])
    assert (
        "\n\nThe script wrote these files, and plimsoll discarded them:\n"
        "      3.00 MiB  a.pt, changed\n\n" in str(found)
    )
    many = [Written(f"{number}.pt", 1, "new") for number in range(8)]
    lines = str(replace(found, written=many)).split("discarded them:\n")[1].split("\n\n")[0]
    assert lines.splitlines()[-2:] == ["        1 byte  5.pt", "  and 2 more"]
    assert "discarded" not in str(replace(found, written=[]))


def test_a_range_is_shown_where_its_ends_read_differently() -> None:
    masks = Assumed(SIZES_BY_DATA[0], "aten::nonzero", None, 1)
    convolution = Assumed(WORKSPACES[0], "aten::cudnn_convolution", None, 1)
    found = replace(
        prediction(2 * GiB),
        peak_allocated_range_bytes=(2 * GiB, 3 * GiB),
        assumptions=[masks],
    )
    assert "2.00 GiB  (2.00 GiB to 3.00 GiB, depending on the data)" in str(found)
    both = replace(found, assumptions=[masks, convolution])
    assert "depending on the data and cuDNN's workspaces)" in str(both)
    alike = replace(found, peak_allocated_range_bytes=(2 * GiB, 2 * GiB + 1))
    assert "depending on the data" not in str(alike)


def test_a_range_by_the_hosts_pace_stands_alone() -> None:
    found = replace(
        prediction(2 * GiB),
        peak_allocated_range_bytes=(1 * GiB, 2 * GiB),
        assumptions=[Assumed(LETS_GO_LATER, "NCCL's watchdog", None, 1)],
    )
    assert "  peak allocated       1.00 GiB to 2.00 GiB, depending on the host's pace" in str(found)


def test_what_the_card_shows_has_the_range_of_what_is_reserved() -> None:
    found = replace(prediction(2 * GiB), peak_reserved_range_bytes=(1 * GiB, 3 * GiB))
    used = found.device_used_bytes
    assert found.device_used_range_bytes == (used - GiB, used + GiB)
    assert prediction(2 * GiB).device_used_range_bytes is None


def test_what_a_kernel_may_take_inside_is_said_in_bytes_the_most_first() -> None:
    what = "plimsoll counts only its results; its kernel may also take about as much memory"
    assumed = [
        Assumed("plimsoll assumes that tensors of equal shape are equal", "aten::equal", None, 1),
        Assumed(what, "aten::small", None, 9, MiB),
        Assumed(what, "aten::large", None, 1, 3 * MiB),
    ]
    text = str(replace(prediction(2 * MiB), assumptions=assumed))
    assert (
        f"Assumed:\n  aten::large (3.00 MiB), aten::small (1.00 MiB): {what}\n  aten::equal: "
        in text
    )


def test_what_a_script_reads_is_said_once_with_its_lines_and_in_plain_words() -> None:
    assumed = [
        Assumed(BEYOND_BUDGET, "aten::zero_", None, 9),
        Assumed(READS_UNKNOWN, "aten::_local_scalar_dense", "train.py:9 log", 3),
        Assumed(READS_UNKNOWN, "aten::copy_", "train.py:9 log", 1),
    ]
    text = str(replace(prediction(2 * MiB), assumptions=assumed))
    assert f"Assumed:\n  train.py:9 log: {READS_UNKNOWN}\n\n" in text
    assert "Nothing was assumed." in str(replace(prediction(2 * MiB), assumptions=assumed[:1]))


def test_a_table_says_why_a_figure_is_missing() -> None:
    parts = FitParts(
        gpu="T4", vary="--n", largest=1, smallest_failing=2, stopped=None, multiple_of=1,
        total_bytes=8 * GiB, used_bytes=0, headroom_bytes=0, seconds=1, written=[],
        curve=[
            Trial(1, fits=True, device_used_bytes=GiB, step_seconds=None, headroom_bytes=7 * GiB),
            Trial(2, fits=False, device_used_bytes=8 * GiB, step_seconds=None),
            Trial(3, fits=False, device_used_bytes=None, step_seconds=None, error="it fails"),
        ],
    )  # fmt: skip
    rows = [" ".join(row.split()) for row in fit_text(parts).splitlines()]
    assert "1 1.00 GiB not timed fits" in rows
    assert "2 >8.00 GiB not timed does not fit" in rows
    assert "3 not known not timed the script fails" in rows


def test_a_value_that_may_not_fit_is_marked() -> None:
    doubtful = Trial(2, True, 8 * GiB, 0.1, 10 * MiB, may_not_fit=True)
    parts = FitParts(
        gpu="T4", vary="--n", largest=2, smallest_failing=3, stopped=None, multiple_of=1,
        total_bytes=8 * GiB, used_bytes=0, headroom_bytes=0, seconds=1, written=[],
        curve=[Trial(1, True, GiB, 0.1, 7 * GiB), doubtful],
    )  # fmt: skip
    rows = [" ".join(row.split()) for row in fit_text(parts).splitlines()]
    assert "1 1.00 GiB 100 ms fits" in rows
    assert "2 8.00 GiB 100 ms may not fit" in rows
    assert trial_text(doubtful, 8 * GiB).startswith("may not fit, 8.00 GiB of 8.00 GiB")


def test_a_value_that_only_fragments_keep_from_fitting_is_told() -> None:
    ways = [
        AllocatorNeed("native", "expandable_segments:True", fits=True, card_bytes=7 * GiB),
        AllocatorNeed("elastic", "", fits=True, card_bytes=6 * GiB),
    ]
    parts = FitParts(
        gpu="T4", vary="--n", largest=1, smallest_failing=2, stopped=None, multiple_of=1,
        total_bytes=8 * GiB, used_bytes=0, headroom_bytes=0, seconds=1, written=[],
        curve=[
            Trial(1, fits=True, device_used_bytes=GiB, step_seconds=None, headroom_bytes=7 * GiB),
            Trial(2, False, 9 * GiB, None, -GiB, fits_with=ways),
        ],
    )  # fmt: skip
    (line,) = [line for line in fit_text(parts).splitlines() if "in pieces" in line]
    assert line.startswith("  --n 2: does not fit: what is live fits")
    setting = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (7.00 GiB)"
    assert f"it fits with {setting} or `plimsoll run` (6.00 GiB)" in line
    assert line.endswith("--conf expandable_segments:True searches under that setting")


def test_a_fit_says_what_limits_its_answer() -> None:
    def with_caveats(value: int, *caveats: str) -> Trial:
        return Trial(value, True, GiB, 0.1, 7 * GiB, caveats=[*caveats])

    parts = FitParts(
        gpu="T4", vary="--n", largest=2, smallest_failing=3, stopped=None, multiple_of=1,
        total_bytes=8 * GiB, used_bytes=0, headroom_bytes=0, seconds=1, written=[],
        curve=[with_caveats(1, "a", "b"), with_caveats(2, "b", "c")],
    )  # fmt: skip
    assert fit_text(parts).splitlines()[1:3] == ["  --n 2: b", "  --n 2: c"]
    assert fit_text(replace(parts, largest=None)).splitlines()[1:3] == ["  --n 1: a", "  --n 1: b"]
    plain = fit_text(replace(parts, curve=[with_caveats(1), with_caveats(2)]))
    assert not any(line.startswith("  --n ") and ": " in line for line in plain.splitlines())


def test_a_search_notes_the_growth_of_each_trial(search: Search, monkeypatch: Any) -> None:
    leaks = [(4 + step) * MiB for step in range(12)]
    whole = prediction

    def leaking(need_bytes: int, used_bytes: int = 0) -> Prediction:
        return replace(whole(need_bytes, used_bytes), step_peaks_bytes=leaks)

    monkeypatch.setitem(globals(), "prediction", leaking)
    found, _ = search(lambda value: value * GiB)
    (largest,) = [trial for trial in found.curve if trial.value == found.largest]
    assert (largest.growth_bytes, largest.steps) == (MiB, 12)
    assert "growth_bytes" in found.to_dict()["curve"][0]
    assert "Memory grows each step by 1.00 MiB: the answer holds for 12 steps" in str(found)


def test_parts_of_nothing_have_no_row() -> None:
    held = {"activations": 4 * GiB, "rounding": MiB, "inputs": 5 * MiB}
    found = replace(prediction(4 * GiB), by_category=held)
    _, _, rows = str(found).partition("At the peak:\n")
    assert [row.split()[-1] for row in rows.split("\n\n")[0].splitlines()] == [
        "activations",
        "inputs",
    ]


class Runs:
    """Replaces runs of the script: `need` computes the script's memory from the option's value.

    Attributes:
        tried: The values in order, each with a flag: whether its run had unlimited memory.
        default: The option's default value in the script; None if `fit` cannot find it.
    """

    def __init__(
        self, need: Need, default: int | None, interrupted_after: int | None, change: Change
    ) -> None:
        self._need = need
        self._change = change
        self._interrupted_after = interrupted_after
        self.default = default
        self.tried: list[tuple[int | None, bool]] = []

    def run_beside(
        self, requests: Sequence[Request], ended: Callable[[int, Outcome], None]
    ) -> list[Outcome]:
        outcomes = []
        for number, request in enumerate(requests):
            if len(self.tried) == self._interrupted_after:
                raise KeyboardInterrupt
            outcome = self._outcome(request)
            outcomes.append(outcome)
            ended(number, outcome)
        return outcomes

    def _outcome(self, request: Request) -> Outcome:
        value = int(request.arguments[-1]) if request.arguments else None
        self.tried.append((value, request.setup.unlimited))
        if request.survey is not None and self.default is not None:
            survey = Survey(arguments=[ArgumentUse(["-n", "--n"], self.default)])
            Path(request.survey).write_text(json.dumps(survey.to_dict()))
        value = self.default if value is None else value
        if value is None:
            return Outcome(None, ScriptError("script.py", 2), b"the value is missing")
        try:
            found = prediction(self._need(value), used_bytes=request.setup.used_bytes)
        except ScriptError as error:
            return Outcome(None, error, b"a traceback")
        if request.setup.unlimited:
            found = replace(found, fits=True, out_of_memory=None)
        return Outcome(self._change(found, request.setup.unlimited))


@pytest.fixture(params=[1, 2])
def slots(request: pytest.FixtureRequest) -> int:
    """Returns the number of parallel trials."""
    return int(request.param)


@pytest.fixture
def search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slots: int
) -> Callable[..., tuple[Fit, Runs]]:
    """Returns a function that calls `fit` for a memory need.

    The function returns the fit, and the runs that `fit` made.
    """
    script = tmp_path / "script.py"
    script.touch()
    monkeypatch.setattr(values, "slots", lambda *_, **__: slots)

    def search(
        need: Need,
        arguments: Sequence[str] = (),
        default: int | None = None,
        interrupted_after: int | None = None,
        change: Change = lambda found, _: found,
        **options: Any,
    ) -> tuple[Fit, Runs]:
        runs = Runs(need, default, interrupted_after, change)
        monkeypatch.setattr(values, "run_beside", runs.run_beside)
        return fit(script, "--n", arguments, gpu="T4", **options), runs

    return search


ROOM = CARD.total_bytes - CARD.context_bytes


def affine(answer: int, fixed: float) -> Need:
    """Returns a function that computes the needed bytes from the option's value.

    Every value needs the share `fixed` of ROOM, and further bytes in proportion to the value. The
    largest value that fits is `answer`.
    """
    return lambda n: int(ROOM * (fixed + (1 - fixed) * n / (answer + 0.5)))


def quadratic(answer: int, fixed: float) -> Need:
    return lambda n: int(ROOM * (fixed + (1 - fixed) * (n / (answer + 0.5)) ** 2))


def stepped(answer: int, fixed: float) -> Need:
    """Returns a function like that of `affine`, but its result grows in steps of 20 MiB."""
    return lambda n: int(affine(answer, fixed)(n) // (20 * MiB) + 1) * 20 * MiB


def largest(need: Need) -> int:
    """Returns the largest value that fits, found by bisection."""
    low, high = 0, 1 << 30
    while high - low > 1:
        middle = (low + high) // 2
        if prediction(need(middle)).fits:
            low = middle
        else:
            high = middle
    return low


def check(found: Fit, need: Need) -> None:
    """Checks the verdict on each tried value, and that the values in the answer were tried."""
    verdicts = {trial.value: trial.fits for trial in found.curve}
    assert list(verdicts) == sorted(verdicts)
    assert all(prediction(need(v)).fits == fits for v, fits in verdicts.items() if fits is not None)
    assert found.largest is None or verdicts[found.largest] is True
    assert found.smallest_failing is None or verdicts[found.smallest_failing] is False


@pytest.mark.parametrize("kind", [affine, quadratic, stepped])
@pytest.mark.parametrize("answer", [3, 29, 180, 6417, 70_000])
@pytest.mark.parametrize("fixed", [0.05, 0.3, 0.6])
@pytest.mark.parametrize("times", [1 / 8, 0.9, 1.5, 4])
def test_the_answer_is_within_a_percent_in_eight_runs(
    kind: Callable[[int, float], Need], answer: int, fixed: float, times: float, search: Search
) -> None:
    need = kind(answer, fixed)
    true = largest(need)
    found, runs = search(need, default=max(1, int(answer * times)))
    check(found, need)
    assert found.stopped is None
    assert found.largest is not None
    assert found.largest <= true
    assert true - found.largest <= found.largest / 100
    assert len(runs.tried) <= MOST_RUNS


@pytest.mark.parametrize("answer", [180, 6417, 70_000])
@pytest.mark.parametrize("fixed", [0.05, 0.3, 0.6])
def test_a_far_answer_is_within_a_percent_too_where_memory_grows_evenly(
    answer: int, fixed: float, search: Search
) -> None:
    found, runs = search(affine(answer, fixed), default=max(1, answer // 64))
    assert found.largest is not None
    assert largest(affine(answer, fixed)) - found.largest <= found.largest / 100
    assert len(runs.tried) <= MOST_RUNS


@pytest.mark.parametrize("kind", [affine, quadratic, stepped])
@pytest.mark.parametrize("answer", [29, 6417])
@pytest.mark.parametrize("times", [1 / 8, 4])
def test_an_exact_search_goes_on_to_the_last_that_fits(
    kind: Callable[[int, float], Need], answer: int, times: float, search: Search
) -> None:
    need = kind(answer, 0.3)
    found, _ = search(need, default=int(answer * times), exact=True)
    check(found, need)
    assert found.largest == largest(need)
    assert (found.smallest_failing, found.stopped) == (found.largest + 1, None)
    assert str(found).splitlines()[0] == f"T4: --n {found.largest}"


@given(
    answer=integers(1, 10**6),
    fixed=floats(0, 0.9),
    bend=floats(0, 1),
    start=integers(1, 10**6),
    noise=integers(0, 2 * GiB),
    step=sampled_from([1, 3, 8, 64]),
    exact=booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_memory_does_nothing_wrong_is_said(
    answer: int, fixed: float, bend: float, start: int, noise: int, step: int, exact: bool,
    search: Search,
) -> None:  # fmt: skip
    def need(n: int) -> int:
        part = n / answer
        grown = fixed + (1 - fixed) * ((1 - bend) * part + bend * part * part)
        return int(ROOM * grown) + n * 7919 % 1000 * noise // 1000

    found, runs = search(need, start=start, multiple_of=step, exact=exact)
    check(found, need)
    assert exact or len(runs.tried) <= MOST_RUNS
    assert all(trial.value % step == 0 for trial in found.curve)
    if found.stopped is None and found.smallest_failing is not None:
        low = found.largest or 0
        tolerance = step if exact else max(step, low // 100)
        assert found.smallest_failing - low <= tolerance


def test_the_search_begins_with_the_scripts_own_value(search: Search) -> None:
    found, runs = search(affine(29, 0.3), default=8)
    assert runs.tried[0] == (None, False)
    assert (None, False) not in runs.tried[1:]
    assert (8, False) not in runs.tried
    assert 8 in {trial.value for trial in found.curve}
    assert found.largest == 29


@pytest.mark.parametrize("arguments", [["--n", "8"], ["--n=8"], ["--n", "2", "--m", "--n=8"]])
def test_the_search_begins_with_the_value_among_the_arguments(
    arguments: list[str], search: Search
) -> None:
    found, runs = search(affine(29, 0.3), arguments, default=3)
    assert runs.tried[0] == (8, False)
    assert found.largest == 29


def test_a_value_that_is_given_comes_first(search: Search) -> None:
    assert search(affine(29, 0.3), ["--n", "8"], start=5)[1].tried[0] == (5, False)


def test_where_nobody_knows_the_scripts_own_value_the_search_begins_at_one(search: Search) -> None:
    found, runs = search(affine(29, 0.3))
    assert [value for value, _ in runs.tried[:2]] == [None, 1]
    assert found.largest == 29
    assert len(runs.tried) <= MOST_RUNS


def test_the_varied_argument_is_taken_out_of_the_others() -> None:
    assert take_out(["a", "--n", "8", "--nn", "3"], "--n") == (8, ["a", "--nn", "3"])
    assert take_out(["--nn", "3"], "--n") == (None, ["--nn", "3"])
    for bad in (["--n"], ["--n", "x"], ["--n=0"], ["--n", "-1"], ["--n=1.5"]):
        with pytest.raises(InputError, match="--n needs a first value to vary"):
            take_out(bad, "--n")


def test_where_not_even_one_fits_there_is_none(search: Search) -> None:
    found, _ = search(lambda n: n * CARD.total_bytes, start=5)
    assert (found.largest, found.smallest_failing, found.stopped) == (None, 1, None)
    assert str(found).splitlines()[0] == "T4: not even --n 1 fits"


def test_nothing_above_the_bound_is_tried(search: Search) -> None:
    found, runs = search(lambda n: n * MiB, start=3, at_most=100)
    assert found.largest == max(value or 0 for value, _ in runs.tried) == 100
    assert str(found).splitlines()[0] == (
        "T4: --n at least 100; not searched further: --at-most 100 ends the search"
    )


def test_a_bound_does_not_hide_what_does_not_fit(search: Search) -> None:
    need = affine(6417, 0.3)
    found, _ = search(need, at_most=20_000, exact=True)
    assert (found.largest, found.stopped) == (largest(need), None)


def test_a_start_of_the_scripts_own_above_the_bound_is_lowered(search: Search) -> None:
    found, _ = search(affine(29, 0.3), ["--n", "64"], at_most=10)
    assert (found.largest, found.stopped) == (10, "--at-most 10 ends the search")


def test_where_memory_stops_growing_the_search_ends_and_says_so(search: Search) -> None:
    found, _ = search(lambda n: min(n, 6) * MiB)
    assert found.largest is not None
    assert found.largest >= 1024
    assert found.stopped is not None
    assert found.stopped.startswith("memory is the same from --n ")


def test_growth_that_rounding_hides_is_growth(search: Search) -> None:
    found, _ = search(lambda n: 100 + n // 512, exact=True)
    assert found.largest is not None
    assert found.largest > 1 << 32


def test_memory_that_does_not_depend_on_the_value_is_an_error(search: Search) -> None:
    with pytest.raises(
        InputError, match=r"does not depend on --n: the values 3 to \d+ need the same"
    ):
        search(lambda _: MiB, start=3)


def test_a_script_without_cuda_is_run_once(search: Search) -> None:
    with pytest.raises(InputError, match="never touches CUDA"):
        search(lambda _: 0, default=4)


def failing(above: int, reason: str | None = None) -> Need:
    def need(n: int) -> int:
        if n > above:
            raise ScriptError("script.py", 1, reason=reason)
        return n * MiB

    return need


def test_below_values_with_which_the_script_fails_the_search_goes_on(
    search: Search, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    found, _ = search(failing(100, "ValueError: too many (script.py:1 <module>)"), start=1)
    assert found.largest is not None
    assert 90 <= found.largest <= 100
    assert found.stopped == f"with --n {found.smallest_failing} the script fails"
    first = f"T4: --n at least {found.largest}; not searched further: {found.stopped}"
    assert str(found).splitlines()[0] == first
    assert "the script fails" in str(found).splitlines()[-1]
    # shown once, although several runs failed
    assert capfdbinary.readouterr().err == b"a traceback"
    failed = next(trial for trial in found.curve if trial.error)
    assert trial_text(failed, CARD.total_bytes) == (
        "the script fails: ValueError: too many (script.py:1 <module>)"
    )


def test_a_script_that_fails_before_it_fits_is_an_error(
    search: Search, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with pytest.raises(ScriptError):
        search(failing(0))
    assert capfdbinary.readouterr().err == b"a traceback"


def multiples(step: int, need: Need, reason: str | None = None) -> Need:
    def only(n: int) -> int:
        if n % step:
            raise ScriptError("script.py", 1, reason=reason)
        return need(n)

    return only


@pytest.mark.parametrize("step", [8, 12])
def test_the_step_that_a_failure_names_is_taken_at_once(step: int, search: Search) -> None:
    reason = f"ValueError: n must be divisible by {step} (script.py:7 main)"
    found, runs = search(multiples(step, affine(701, 0.3), reason), default=96)
    assert found.multiple_of in {1, step}
    assert found.largest is not None
    assert 701 - found.largest <= max(step, 7)
    assert len(runs.tried) <= MOST_RUNS
    assert found.stopped is None


@pytest.mark.parametrize("step", [4, 16, 64])
def test_a_step_that_nothing_names_is_found_from_what_worked(step: int, search: Search) -> None:
    found, runs = search(multiples(step, affine(2001, 0.3)), default=256)
    assert found.largest is not None
    assert found.largest % step == 0
    assert 2001 - found.largest <= max(step, 20)
    assert len(runs.tried) <= MOST_RUNS


def test_steps_that_explain_a_failure() -> None:
    def step(reason: str | None, failed: int, accepted: set[int], **options: int) -> int | None:
        given = {"step": 1, "tolerance": 1} | options
        return accepted_step(reason, failed, accepted, **given)

    named = "ValueError: {} (train.py:64 main)"
    assert step(named.format("sizes must be multiples of 48"), 100, {48, 96}) == 48
    assert step(named.format("a multiple of the window, 7"), 100, {14}) == 7
    # 50 is divisible by 10, so the message cannot explain why 50 failed.
    assert step(named.format("not divisible by 10"), 100, {50}) is None
    assert step(named.format("must be divisible by the number of heads"), 65, {64}) == 2
    # 12 is not divisible by 8 and did not fail
    assert step(named.format("must be divisible by 8"), 20, {12}) is None
    assert step(None, 20, {8}) == 8
    assert step(None, 20, {8, 64}, tolerance=2) == 8
    assert step(None, 6384, {1024, 6144}, tolerance=64) == 64
    assert step(None, 20, {5}) is None
    assert step(None, 20, set()) is None
    assert step(named.format("must be divisible by 8"), 9, {24}, step=3) == 24


def test_only_multiples_are_tried(search: Search) -> None:
    found, runs = search(affine(701, 0.3), multiple_of=48, start=100)
    assert found.largest == 672
    assert found.smallest_failing == 720
    assert all(value % 48 == 0 for value, _ in runs.tried if value is not None)
    assert str(found).splitlines()[:2] == ["T4: --n 672", "  in multiples of 48"]


@pytest.mark.parametrize(("headroom", "left"), [("2GiB", 2 * GiB), ("20%", CARD.total_bytes // 5)])
def test_headroom_stays_free(headroom: str, left: int, search: Search) -> None:
    need = affine(6417, 0.3)
    found, _ = search(need, start=1024, headroom=headroom)
    assert found.stopped is None
    assert found.largest is not None
    assert found.smallest_failing is not None
    assert prediction(need(found.largest)).headroom_bytes >= left
    assert prediction(need(found.smallest_failing)).headroom_bytes < left
    assert found.headroom_bytes == pytest.approx(left, abs=1)
    assert "to stay free" in str(found).splitlines()[1]
    assert any("leaves too little" in line for line in str(found).splitlines())


def test_what_others_use_is_not_there(search: Search) -> None:
    need = affine(6417, 0.3)
    found, _ = search(need, start=1024, used="3GiB")
    assert found.largest is not None
    assert prediction(need(found.largest), used_bytes=3 * GiB).fits
    assert (found.used_bytes, found.total_bytes) == (3 * GiB, CARD.total_bytes - 3 * GiB)
    assert str(found).splitlines()[1] == "  of 14.57 GiB, 3.00 GiB of it used by others"


def test_headroom_is_a_size_or_a_part() -> None:
    assert Headroom.parse("5%").of(100 * GiB) == 5 * GiB
    assert Headroom.parse("1.5GiB").of(100 * GiB) == GiB * 3 // 2
    assert Headroom.parse(None).of(GiB) == Headroom.parse("0").of(GiB) == 0
    for bad in ("100%", "2", "much", "-5%"):
        with pytest.raises(InputError):
            Headroom.parse(bad)


def test_an_interrupted_search_keeps_what_it_knows(search: Search) -> None:
    found, _ = search(affine(29, 0.3), default=8, interrupted_after=1)
    assert (found.largest, found.smallest_failing, found.stopped) == (8, None, INTERRUPTED)
    assert str(found).splitlines()[0] == "T4: --n at least 8: interrupted"
    found, _ = search(affine(29, 0.3), default=64, interrupted_after=1)
    assert str(found).splitlines()[0] == "T4: no --n below 64 that fits was found: interrupted"


def test_an_interrupt_before_anything_is_known_is_one(search: Search) -> None:
    with pytest.raises(KeyboardInterrupt):
        search(affine(29, 0.3), default=8, interrupted_after=0)


def test_where_the_runs_are_spent_the_answer_lies_between(search: Search) -> None:
    def need(n: int) -> int:  # a jump, which smaller values do not foretell
        return ROOM if n <= 77_777 else 2 * ROOM

    found, runs = search(lambda n: need(n) - 100 * MiB + n, start=64)
    assert len(runs.tried) == MOST_RUNS
    assert found.stopped == "plimsoll stops after 8 runs"
    low, high = found.largest, found.smallest_failing
    between = (
        f"between {low}, which fits, and {high}, which does not" if high else f"at least {low}"
    )
    assert str(found).splitlines()[0].startswith(f"T4: --n {between}")
    assert str(found).splitlines()[0].endswith("plimsoll stops after 8 runs")


def test_a_value_that_fits_above_one_that_does_not_is_the_answer(search: Search) -> None:
    """Makes 20 and 24 fail although 25 fits, as if 20 and 24 needed more workspace."""
    need = affine(29, 0.3)
    odd = {20: 2 * ROOM, 24: 2 * ROOM}
    found, _ = search(lambda n: odd.get(n, need(n)), default=16)
    check(found, lambda n: odd.get(n, need(n)))
    assert found.largest in range(25, 30)


def uncertain(found: Prediction, unlimited: bool) -> Prediction:
    """Returns the prediction with a peak that may be 10 % larger than thought.

    With more than the card has, the run on the card returns cached memory and has less than the
    run with unlimited memory, as a program with much cached memory does.
    """
    reserved = found.peak_reserved_bytes
    most = reserved + reserved // 10
    more: dict[str, Any] = {
        "peak_reserved_range_bytes": (reserved - reserved // 10, most),
        "assumptions": [Assumed(WORKSPACES[0], "aten::cudnn_convolution", None, 1)],
    }
    is_on_card = not unlimited and not found.fits and reserved < 1.2 * ROOM
    if is_on_card:
        more |= {"peak_reserved_bytes": ROOM, "device_used_bytes": found.total_bytes,
                 "headroom_bytes": 0}  # fmt: skip
    if (found.fits or is_on_card or unlimited) and most > ROOM:
        why = "the workspaces may be large" if reserved > 0.95 * ROOM else None
        return replace(found, fits=True if why is None else None, why_unknown=why, **more)
    return replace(found, **more)


def test_below_a_value_that_may_fit_the_search_goes_on_to_one_that_does(search: Search) -> None:
    """530 may fit, and only about 482 fits with the largest workspaces too."""
    found, runs = search(affine(530, 0.0), default=128, change=uncertain)
    assert len(set(runs.tried)) == len(runs.tried)
    assert found.stopped is None
    assert found.largest is not None
    assert found.may_fit is not None
    assert found.largest in range(475, 483)
    assert found.may_fit > found.largest
    trials = {trial.value: trial for trial in found.curve}
    assert trials[found.largest].fits
    assert not trials[found.largest].is_doubtful
    assert all(trials[value].is_doubtful for value in trials if 483 < value < 640)
    first = str(found).splitlines()[0]
    assert first.startswith(
        f"T4: --n at least {found.largest}, which fits for certain; {found.may_fit} "
    )
    assert " may fit" in first
    notes = [line for line in str(found).splitlines() if f"--n {found.may_fit}: " in line]
    assert len(notes) == 1


def test_no_value_is_run_twice_in_the_same_way_if_every_run_is_unknown(search: Search) -> None:
    def unknown(found: Prediction, _: bool) -> Prediction:
        return replace(found, fits=None, why_unknown="several processes share the card")

    found, runs = search(affine(530, 0.0), default=128, change=unknown)
    assert len(set(runs.tried)) == len(runs.tried)
    assert found.largest is None
    assert found.is_open


def test_a_value_that_the_context_may_spoil_is_no_certain_answer(search: Search) -> None:
    def estimated(found: Prediction, _: bool) -> Prediction:
        return replace(found, context_most_bytes=CARD.context_bytes + 512 * MiB)

    need = affine(6417, 0.3)
    found, runs = search(need, default=1024, change=estimated)
    assert found.largest is not None
    assert prediction(need(found.largest)).headroom_bytes >= 512 * MiB
    assert found.largest > 0.94 * 6417
    assert len(runs.tried) <= MOST_RUNS


def test_a_script_without_the_option_is_run_once(search: Search) -> None:
    def lacks(_: int) -> int:
        reason = "NoSuchOptionError: the script has no --n; did you mean --m? (script.py:3 main)"
        raise ScriptError("script.py", 1, reason=reason)

    with pytest.raises(InputError, match=r"^the script has no --n; did you mean --m\?$"):
        search(lacks, default=8)


def test_each_trial_is_told_before_and_after(search: Search) -> None:
    told: list[tuple[int | None, Trial | None]] = []
    found, runs = search(affine(29, 0.3), default=8, progress=lambda *each: told.append(each))
    assert told[0] == (None, None)
    assert told[1] == (8, found.curve[0])
    before = [value for value, trial in told[2:] if trial is None]
    after = [value for value, trial in told[2:] if trial is not None]
    assert before == after == [value for value, _ in runs.tried[1:]]


def test_the_fastest_batch_is_named() -> None:
    found = Fit(
        gpu="T4", vary="--batch-size", largest=2, smallest_failing=3, stopped=None, multiple_of=1,
        total_bytes=GiB, used_bytes=0, headroom_bytes=0, seconds=1.0, written=[],
        curve=[
            Trial(1, True, MiB, 0.1, GiB, samples_per_second=40),
            Trial(2, True, MiB, 0.4, GiB, samples_per_second=20),
        ],
    )  # fmt: skip
    assert "--batch-size 1 is about as fast as any value that was tried: 40 samples/s" in str(found)
    alike = [replace(trial, samples_per_second=40 - trial.value) for trial in found.curve]
    # the times per sample are about equal, and times are estimates, so the larger value wins
    assert replace(found, curve=alike).fastest == (2, 38)
    unknown = [replace(trial, samples_per_second=None) for trial in found.curve]
    assert replace(found, curve=unknown).fastest is None


def test_a_jobs_rate_is_that_of_all_ranks_and_says_what_it_assumes() -> None:
    step = StepTime(
        what="step", ends_at=None, seconds=0.1, seconds_range=(0.1, 0.2), compute_seconds=0.1,
        communicating_seconds=0.0, collectives_seconds=0.0, network_gbit_per_s=None,
        copies_seconds=0.0, waiting_seconds=0.0, host_seconds=0.0, kernels=5,
        samples_per_second=50.0, lines=[],
    )  # fmt: skip
    found = replace(prediction(MiB), step=step, world_size=4)
    says = "200 samples/s on all 4 ranks, if each has samples of its own (50 samples/s on each)"
    assert says in str(found)
    assert found.to_dict()["samples_per_second"] == 200
    alone = replace(found, world_size=1)
    assert "50 samples/s; " in str(alone)
    fitted = Fit(
        gpu="T4", vary="--batch-size", largest=1, smallest_failing=None, stopped="it is a test",
        multiple_of=1, total_bytes=GiB, used_bytes=0, headroom_bytes=0, seconds=1.0, written=[],
        curve=[Trial(1, True, MiB, 0.1, GiB, samples_per_second=200)], world_size=4,
    )  # fmt: skip
    assert f"as fast as any value that was tried: {says}" in str(fitted)


def test_a_doubtful_value_may_fit_unless_a_smaller_one_does_not() -> None:
    found = Fit(
        gpu="T4", vary="--batch-size", largest=2, smallest_failing=None, stopped="it is a test",
        multiple_of=1, total_bytes=GiB, used_bytes=0, headroom_bytes=0, seconds=1.0, written=[],
        curve=[Trial(2, True, MiB, 0.4, GiB), Trial(4, None, 2 * GiB, None, -GiB)],
    )  # fmt: skip
    assert str(found).splitlines()[3].endswith("not timed  may fit")
    why = "without a limit it takes 2.00 GiB, more than the card's 1.00 GiB"
    assert f"--batch-size 4: may fit: {why}" in str(found)
    known = replace(found, smallest_failing=3, stopped=None)
    assert str(known).splitlines()[3].endswith("not timed  does not fit, as 3 does not")
    assert "may fit" not in str(known)
    open_ = replace(known.curve[1], value=3, why_unknown="its workspaces are not known")
    curve = [known.curve[0], open_, known.curve[1]]
    unknown = replace(known, smallest_failing=None, may_fit=3, curve=curve)
    first, *rows = str(unknown).splitlines()
    assert first == "T4: --batch-size at least 2, which fits for certain; 3 or more may fit"
    assert [row.split("  ")[-1] for row in rows[2:4]] == ["not known", "may fit"]
    assert "  --batch-size 3: not known: its workspaces are not known" in rows
    assert [row.split()[1] for row in rows[2:4]] == [">1.00", ">1.00"]
    none_fits = replace(unknown, largest=None, curve=[open_])
    first = str(none_fits).splitlines()[0]
    assert first == "T4: no --batch-size that fits for certain was found; 3 or more may fit"
    assert none_fits.is_open
    assert not unknown.is_open
    broken = replace(known.curve[1], value=3, fits=False, error="it raises")
    fails = replace(known, curve=[known.curve[0], broken, known.curve[1]])
    assert "as 3 does not" not in str(fails)
    first = str(replace(fails, largest=None, may_fit=2)).splitlines()[0]
    assert first.endswith("was found; 2 may fit, and with 3 the script fails")


def test_a_parabola_is_followed_where_there_is_one() -> None:
    assert crossing([(1, 9), (2, 8)]) == pytest.approx(10)
    assert crossing([(1, 99), (5, 75), (12, -44)]) == pytest.approx(10)
    assert crossing([(1, 99), (2, 96), (5, 75)]) == pytest.approx(10)
    assert crossing([(1, 9), (2, 9)]) is None
    assert crossing([(1, 9)]) is None


@pytest.mark.parametrize(
    "bounds", [{"start": 0}, {"start": 5, "at_most": 4}, {"at_most": 0}, {"multiple_of": 0}]
)
def test_bad_bounds_are_refused(bounds: dict[str, int], search: Search) -> None:
    with pytest.raises(InputError, match="the values to try"):
        search(lambda n: n, **bounds)


def test_an_unknown_option_is_refused(search: Search) -> None:
    with pytest.raises(TypeError, match="alocator"):
        search(lambda n: n, alocator="elastic")


def test_used_memory_is_asked_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(reading: Reading) -> None:
        monkeypatch.setattr(Nvml, "read", lambda _: reading)

    gpu = GpuReading(0, "1", "GPU", 8 * GiB, 3 * GiB, None, None)
    read(Reading((gpu, replace(gpu, index=1, used_bytes=5 * GiB))))
    assert used_memory("auto") == 3 * GiB
    read(Reading((replace(gpu, used_bytes=None),)))
    with pytest.raises(InputError, match="the driver does not say"):
        used_memory("auto")
    read(Reading(unavailable="NVML is not available"))
    with pytest.raises(InputError, match=r"this machine \(NVML is not available"):
        used_memory("auto")
    assert used_memory("3GiB") == 3 * GiB
    assert used_memory(None) == used_memory(0) == 0


def test_a_card_is_smaller_by_what_others_use() -> None:
    def total(**options: Any) -> int:
        (profile,) = (
            Options(gpu="T4", **options).request("json.tool", is_module=True).setup.profiles()
        )
        return profile.total_bytes

    assert total(used="3GiB") == CARD.total_bytes - 3 * GiB
    assert total(used="3GiB", dedicated="2GiB") == total(dedicated="2GiB")
    with pytest.raises(InputError, match="leaves nothing of T4"):
        total(used="15GiB")
    with pytest.raises(InputError, match="beside its context and what others use: 11"):
        total(used="3GiB", dedicated="13GiB")
    text = str(prediction(2 * MiB, used_bytes=3 * GiB))
    assert "of 14.57 GiB, 3.00 GiB of it used by others" in text
