"""Tests the progress lines on stderr while plimsoll searches for changes that make a script fit."""

from __future__ import annotations

import pytest

from plimsoll.base.units import GiB
from plimsoll.cli.fit_within import _Watcher
from plimsoll.cli.progress import Progress
from plimsoll.prediction.fitting.attempts import Attempt
from plimsoll.prediction.survey import AllocatorUse, Survey
from tests.unit.tiny_script import prediction


class Shown(Progress):
    """A display that keeps its lines instead of showing them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.doing = ""

    def now(self, doing: str) -> None:
        self.doing = doing

    def say(self, line: str) -> None:
        self.lines.append(line)


def attempt(least: AllocatorUse) -> Attempt:
    found = prediction(4 * GiB, 5 * GiB, room=6 * GiB, seconds=0.25)
    native = AllocatorUse("native", "", 4 * GiB, 5 * GiB, fits=True)
    return Attempt((), found, Survey(allocators=[native, least]))


@pytest.mark.parametrize(
    ("least", "said"),
    [
        (
            AllocatorUse("elastic", "", 4 * GiB, 4 * GiB, fits=True),
            "5.50 GiB (4.50 GiB with plimsoll's elastic allocator)",
        ),
        (
            AllocatorUse("native", "expandable_segments:True", 4 * GiB, 4 * GiB, fits=True),
            "5.50 GiB (4.50 GiB with expandable_segments:True)",
        ),
        (AllocatorUse("elastic", "", 4 * GiB, 6 * GiB, fits=True), "5.50 GiB"),
    ],
)
def test_a_trial_says_which_allocator_needs_less(least: AllocatorUse, said: str) -> None:
    shown = Shown()
    watcher = _Watcher(shown)
    watcher.begins([])
    assert shown.doing == "trying the unchanged script, 0 of at most 15 simulations done"
    watcher.ended(attempt(least))
    assert shown.lines == [f"the unchanged script: fits, {said}, about 250 ms a step"]
    assert shown.doing == "1 of at most 15 simulations done"


def test_a_trial_that_fits_only_under_another_setting_says_so_with_its_own_figure() -> None:
    shown = Shown()
    native = AllocatorUse("native", "", 4 * GiB, 9 * GiB, fits=False)
    setting = "expandable_segments:True"
    fits = AllocatorUse("native", setting, 4 * GiB, 7 * GiB, fits=True, within_bytes=5 * GiB)
    uses = [native, fits, AllocatorUse("elastic", "", 4 * GiB, 4 * GiB, fits=True)]
    found = prediction(4 * GiB, 9 * GiB, room=6 * GiB, seconds=0.25)
    _Watcher(shown).ended(Attempt((), found, Survey(allocators=uses)))
    said = f"fits under {setting}, 5.50 GiB, about 250 ms a step"
    assert shown.lines == [f"the unchanged script: {said}"]
