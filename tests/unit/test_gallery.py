"""Tests the code that runs the scripts in tests/gallery.

This code reads the scripts' docstrings, compares predicted with measured peaks, stores the results,
and writes docs/gallery.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gallery.bounds import CLOSE, KNOWN, bounds_of, holds
from tests.gallery.figures import Figures
from tests.gallery.page import page
from tests.gallery.quick import LONG, QUICK
from tests.gallery.results import Measured, Predicted
from tests.gallery.scripts import Script, ScriptRuleError, all_scripts, read_script

MIB = 1 << 20
PAGE = Path(__file__).parents[2] / "docs" / "gallery.md"


def script_of(folder: Path, docstring: str, end: str = "print('done: 3 steps')") -> Script:
    path = folder / "area" / "name.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'"""{docstring}"""\n{end}\n')
    return read_script(path)


def test_a_script_says_what_it_shows_and_needs_and_how_it_ends(tmp_path: Path) -> None:
    needs = "Needs: torch, torchvision, torch_geometric\nSizes depend on data.\n"
    script = script_of(tmp_path, f"Boxes are found.\n\n{needs}")
    assert script.name == "area/name"
    assert script.shows == "Boxes are found."
    assert script.needs == ("torchvision", "torch-geometric")
    assert script.by_data
    assert not script.only_simulated
    assert script.last_line == "done: 3 steps"


def test_a_script_that_says_no_more_needs_nothing(tmp_path: Path) -> None:
    script = script_of(tmp_path, "Boxes are found.")
    assert (script.needs, script.by_data, script.missing()) == ((), False, [])


def test_libraries_that_have_stand_ins_are_not_missing(tmp_path: Path) -> None:
    needs = "Shown.\n\nNeeds: no-such-library\n"
    assert script_of(tmp_path, needs).missing() == ["no-such-library"]
    assert script_of(tmp_path, f"{needs}Only simulated.\n").missing() == []


@pytest.mark.parametrize(
    ("docstring", "end"),
    [
        ("boxes", "print('done: 3 steps')"),
        ("Boxes are\nfound.", "print('done: 3 steps')"),
        ("Boxes are found.", "print(3)"),
        ("Boxes are found.", "print(f'done: {3} steps', 'done: 4')"),
    ],
)
def test_a_script_that_breaks_the_rules_is_named(tmp_path: Path, docstring: str, end: str) -> None:
    with pytest.raises(ScriptRuleError, match="area/name"):
        script_of(tmp_path, docstring, end)


def test_the_last_line_is_found_among_others(tmp_path: Path) -> None:
    script = script_of(tmp_path, "Boxes are found.")
    assert script.ended_well("a warning\ndone: 3 steps\nanother\n")
    assert not script.ended_well("not done: 3 steps\n")
    script = script_of(tmp_path, "Boxes are found.", "print('done:', 2 + 2, 'boxes')")
    assert script.ended_well("done: 4 boxes\n")


def test_peaks_are_within_bounds_or_within_their_range() -> None:
    truth = Figures(allocated_bytes=1000 * MIB, reserved_bytes=2000 * MIB)
    assert holds(Figures(allocated_bytes=1004 * MIB, reserved_bytes=1971 * MIB), truth)
    assert not holds(Figures(allocated_bytes=1006 * MIB, reserved_bytes=2000 * MIB), truth)
    assert not holds(Figures(allocated_bytes=1000 * MIB, reserved_bytes=2031 * MIB), truth)
    by_data = Figures(
        allocated_bytes=1100 * MIB,
        reserved_bytes=2100 * MIB,
        allocated_range=(900 * MIB, 1200 * MIB),
        reserved_range=(1900 * MIB, 2200 * MIB),
    )
    assert holds(by_data, truth)
    assert not holds(by_data, Figures(allocated_bytes=1201 * MIB, reserved_bytes=2100 * MIB))


def test_another_pytorch_has_wider_bounds_and_says_why() -> None:
    assert bounds_of("any/script", "2.11.0", "2.11.0+cu130") == CLOSE
    other = bounds_of("any/script", "2.13.0+cpu", "2.11.0+cu130")
    assert other.reserved > CLOSE.reserved
    assert other.why


def test_results_of_scripts_that_were_not_run_stay(tmp_path: Path) -> None:
    ranges = Figures(allocated_bytes=3, reserved_bytes=4, allocated_range=(2, 5), seconds=1.5)
    figures = {"b/x": Figures(why_not="not installed: x"), "a/x": ranges}
    Measured("NVIDIA H200", "2.11.0+cu130", figures).write(tmp_path)
    again = Measured.read(tmp_path)
    assert again == Measured("NVIDIA H200", "2.11.0+cu130", figures)
    assert again.of("a/x") == ranges
    assert again.of("b/x") is None
    assert again.of("c/x") is None
    Predicted({"2.13": figures, "2.9": figures}).write(tmp_path)
    assert list(Predicted.read(tmp_path).figures) == ["2.9", "2.13"]


def test_the_page_shows_predictions_of_the_measured_version_first(tmp_path: Path) -> None:
    script = script_of(tmp_path, "Boxes are found.\n\nNeeds: torchvision\n")
    versions = {"torchvision": "0.26.0"}
    truth = Figures(allocated_bytes=1000 * MIB, reserved_bytes=2000 * MIB, versions=versions)
    found = Figures(allocated_bytes=1001 * MIB, reserved_bytes=2002 * MIB, versions=versions)
    measured = Measured("NVIDIA H200", "2.11.0+cu130", {"area/name": truth})
    both = {"2.11": {"area/name": found}, "2.13": {"area/name": truth}}
    text = page([script], measured, Predicted(both))
    assert "| Boxes are found. | 1001.0 | 1000.0 | +0.10% | 2002.0 | 2000.0 | +0.10% |" in text
    assert "of 1 that were predicted under the same version, 1 are within" in text
    assert "| torchvision | 0.26.0 |" in text
    text = page([script], measured, Predicted({"2.13": both["2.13"]}))
    assert "| 1000.0 [2.13] | 1000.0 |" in text


def test_the_page_is_up_to_date() -> None:
    text = page(all_scripts(), Measured.read(), Predicted.read())
    assert PAGE.read_text() == text, "run `python benchmarks/gallery.py table`"


def test_a_sixth_of_the_scripts_needs_little_and_a_tenth_is_quick() -> None:
    scripts = {script.name: script for script in all_scripts()}
    little = QUICK | LONG
    assert scripts.keys() >= little
    measured = [scripts[name] for name in little if not scripts[name].only_simulated]
    assert {need for script in measured for need in script.needs} <= {"transformers", "triton"}
    assert len(little) >= len(scripts) // 6
    assert not QUICK & LONG
    assert len(QUICK) >= len(scripts) // 10


def test_every_known_deviation_is_of_a_script_and_says_why() -> None:
    assert {script.name for script in all_scripts()} >= KNOWN.keys()
    assert all(bounds.why for bounds in KNOWN.values())
