"""Predicts each gallery script, and compares the figures with the measured ones."""

from __future__ import annotations

import pytest

from tests.gallery.bounds import bounds_of, holds
from tests.gallery.figures import predicted
from tests.gallery.quick import LONG, QUICK
from tests.gallery.results import Measured
from tests.gallery.scripts import Script, all_scripts, version_of

MEASURED = Measured.read()


def _marks(name: str) -> tuple[pytest.MarkDecorator, ...]:
    if name in LONG:
        return (pytest.mark.long,)
    return () if name in QUICK else (pytest.mark.gallery,)


@pytest.mark.parametrize(
    "script",
    [pytest.param(script, id=script.name, marks=_marks(script.name)) for script in all_scripts()],
)
def test_a_script_is_predicted_to_its_end_and_as_measured(script: Script) -> None:
    if missing := script.missing():
        pytest.skip(f"needs {', '.join(missing)}")
    if (torch := version_of("torch")) is None:
        pytest.skip("needs torch")
    found = predicted(script)
    assert not found.why_not, found.why_not
    assert found.by_data <= script.by_data, "its sizes depend on data"
    if (truth := MEASURED.of(script.name)) is not None:
        bounds = bounds_of(script.name, torch, MEASURED.torch)
        assert holds(found, truth, bounds), f"{found}, measured {truth}"
