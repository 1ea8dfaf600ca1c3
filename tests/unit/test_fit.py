"""`plimsoll.fit`: which values it tries, and when it says that it does not know more."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll import InputError, ScriptError
from plimsoll.fitting import fit
from plimsoll.gpus import gpu_profile
from plimsoll.prediction import Prediction
from plimsoll.prediction.parts import LETS_GO_LATER, Assumed, CardVerdict, Written
from plimsoll.units import GiB, MiB

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from plimsoll.prediction.request import Request

    Need = Callable[[int], int]

pytest.importorskip("torch")
CARD = gpu_profile("T4")


def prediction(need_bytes: int) -> Prediction:
    """What a script is found to need that asks for so many bytes."""
    allocated = -(-need_bytes // (2 * MiB)) * 2 * MiB
    used = allocated + CARD.context_bytes
    return Prediction(
        script="script.py", gpu="T4", driver="linux", allocator="native", policy="strict",
        conf="", torch="2.13", total_bytes=CARD.total_bytes, context_bytes=CARD.context_bytes,
        peak_allocated_bytes=allocated, peak_reserved_bytes=allocated, device_used_bytes=used,
        shared_used_bytes=0, shared=None, shared_by_category={}, shared_lines=[],
        fits=used <= CARD.total_bytes, headroom_bytes=CARD.total_bytes - used,
        peak_allocated_range_bytes=None, peak_reserved_range_bytes=None, stopped=None,
        out_of_memory=None, num_ooms=0, by_category={"rounding": allocated - need_bytes},
        top_lines=[],
        step_peaks_bytes=[], step_seconds=None, step_seconds_range=None, step=None,
        other_gpus=[], assumptions=[], written=[],
        uses_cuda=need_bytes > 0, events=2, seconds=1.0,
    )  # fmt: skip


def test_what_was_written_is_listed_as_far_as_there_is_room() -> None:
    found = replace(prediction(2 * MiB), written=[Written("a.pt", 3 * MiB, "changed")])
    assert "\n\nWritten, and thrown away:\n      3.00 MiB  a.pt, changed\n\n" in str(found)
    many = [Written(f"{number}.pt", 1, "new") for number in range(8)]
    lines = str(replace(found, written=many)).split("thrown away:\n")[1].split("\n\n")[0]
    assert lines.splitlines()[-2:] == ["        1 byte  5.pt", "  and 2 more"]
    assert "Written" not in str(replace(found, written=[]))


def test_a_range_is_shown_where_its_ends_read_differently() -> None:
    found = replace(prediction(2 * GiB), peak_allocated_range_bytes=(2 * GiB, 3 * GiB))
    assert "2.00 GiB to 3.00 GiB, by what the data is like" in str(found)
    late = replace(found, assumptions=[Assumed(LETS_GO_LATER, "NCCL's watchdog", None, 1)])
    assert "2.00 GiB to 3.00 GiB, by the host's pace" in str(late)
    alike = replace(found, peak_allocated_range_bytes=(2 * GiB, 2 * GiB + 1))
    assert "by what the data is like" not in str(alike)


def test_what_a_kernel_may_take_inside_is_said_in_bytes_the_most_first() -> None:
    what = "its kernel takes nothing besides its results, but may take as much as its tensors"
    assumed = [
        Assumed("tensors of equal shape are taken for equal", "aten::equal", None, 1),
        Assumed(what, "aten::small", None, 9, MiB),
        Assumed(what, "aten::large", None, 1, 3 * MiB),
    ]
    text = str(replace(prediction(2 * MiB), assumptions=assumed))
    assert (
        f"Assumed:\n  {what}: "
        "aten::large (3.00 MiB), aten::small (1.00 MiB)\n  tensors of equal" in text
    )


def test_cards_that_fit_by_returning_cached_memory_are_told_apart() -> None:
    cards = [
        CardVerdict("roomy", 10 * MiB, fits=True, headroom_bytes=0),
        CardVerdict("tight", 9 * MiB, fits=True, headroom_bytes=-MiB),
        CardVerdict("small", 8 * MiB, fits=False, headroom_bytes=-2 * MiB),
    ]
    text = str(replace(prediction(2 * MiB), other_gpus=cards))
    assert "\nFits (kernels as on T4): roomy\n" in text
    assert (
        "\nFits only because cached memory goes back to the driver when it is needed: tight\n"
        in (text)
    )
    assert "\nDoes not fit: small\n" in text


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`fit` of a script that needs what a function of the value says."""
    script = tmp_path / "script.py"
    script.touch()

    def search(need: Need, **options: Any) -> Any:
        def predict(request: Request, **_: Any) -> Prediction:
            vary, value = request.arguments
            assert vary == "--n"
            return prediction(need(int(value)))

        monkeypatch.setattr(sys.modules["plimsoll.fitting.values"], "predict_request", predict)
        return fit(script, "--n", gpu="T4", **options)

    return search


def most(size: int) -> int:
    """How many of a size the card holds."""
    return (CARD.total_bytes - CARD.context_bytes) // (2 * MiB) * 2 * MiB // size


@pytest.mark.parametrize("size", [1, 100, MiB, 300 * MiB, 14000 * MiB])
@pytest.mark.parametrize("start", [1, 7, 20_000])
def test_the_largest_is_found_however_large_it_is(
    size: int, start: int, search: Callable[..., Any]
) -> None:
    found = search(lambda n: n * size, start=start)
    assert found.largest == most(size)
    assert found.stopped is None
    verdicts = {trial.value: trial.fits for trial in found.curve}
    assert verdicts[found.largest] is True
    assert verdicts[found.largest + 1] is False
    assert list(verdicts) == sorted(verdicts)


def test_where_not_even_one_fits_there_is_none(search: Callable[..., Any]) -> None:
    found = search(lambda n: n * CARD.total_bytes, start=5)
    assert (found.largest, found.stopped) == (None, None)
    assert str(found).splitlines()[0] == "T4: not even --n 1 fits"


def test_nothing_above_the_bound_is_tried(search: Callable[..., Any]) -> None:
    found = search(lambda n: n * MiB, at_most=100)
    assert found.largest == max(trial.value for trial in found.curve) == 100
    assert str(found).splitlines()[0] == (
        "T4: --n at least 100; not searched further: no value above 100 was asked for"
    )


def test_a_bound_does_not_hide_what_does_not_fit(search: Callable[..., Any]) -> None:
    found = search(lambda n: n * MiB, at_most=20_000)
    assert (found.largest, found.stopped) == (most(MiB), None)


def test_where_memory_stops_growing_the_search_ends_and_says_so(
    search: Callable[..., Any],
) -> None:
    found = search(lambda n: min(n, 6) * MiB)
    assert found.largest == 8 << 10
    assert found.stopped == "memory is the same from --n 8 on"


def test_growth_that_rounding_hides_is_growth(search: Callable[..., Any]) -> None:
    assert search(lambda n: 100 + n // 512).largest == (most(1) - 100) * 512 + 511


def test_memory_that_does_not_depend_on_the_value_is_an_error(search: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="does not depend on --n: 3 to 3072 need the same"):
        search(lambda _: MiB, start=3)


def test_a_script_without_cuda_is_run_once(search: Callable[..., Any]) -> None:
    values: list[int] = []

    def need(n: int) -> int:
        values.append(n)
        return 0

    with pytest.raises(InputError, match="never touches CUDA"):
        search(need)
    assert values == [1]


def failing(above: int) -> Need:
    def need(n: int) -> int:
        if n > above:
            raise ScriptError("script.py", 1)
        return n * MiB

    return need


def test_values_with_which_the_script_fails_end_the_search(search: Callable[..., Any]) -> None:
    found = search(failing(100))
    assert (found.largest, found.stopped) == (64, "with --n 128 the script fails")


def test_a_script_that_fails_before_it_fits_is_an_error(search: Callable[..., Any]) -> None:
    with pytest.raises(ScriptError):
        search(failing(0))


@pytest.mark.parametrize("bounds", [{"start": 0}, {"start": 5, "at_most": 4}])
def test_bad_bounds_are_refused(bounds: dict[str, int], search: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="the values to try"):
        search(lambda n: n, **bounds)


def test_an_unknown_option_is_refused(search: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="alocator"):
        search(lambda n: n, alocator="elastic")
