"""Tests the gallery's harness: it measures a script on a simulated card, or predicts it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.apart import ROOT
from tests.gallery.figures import predicted
from tests.gallery.scripts import read_script
from tests.simulated import output_of

pytest.importorskip("torch")

MIB = 1 << 20


def script_of(folder: Path, text: str) -> Path:
    path = folder / "area" / "name.py"
    path.parent.mkdir()
    path.write_text(f'"""Memory is taken."""\nimport torch\n{text}\n')
    return path


def test_peaks_are_those_of_the_whole_run_whatever_the_script_resets(tmp_path: Path) -> None:
    path = script_of(
        tmp_path,
        """
large = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
del large
torch.cuda.empty_cache()
torch.cuda.reset_peak_memory_stats()
small = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
assert torch.cuda.max_memory_allocated() == 32 << 20
print("done: 2 tensors", __name__)
""",
    )
    out = tmp_path / "peaks.json"
    printed = output_of(ROOT / "benchmarks" / "gallery.py", arguments=["here", path, out])
    assert printed == "done: 2 tensors __main__\n"
    peaks = json.loads(out.read_text())
    assert peaks == {"allocated_bytes": 64 * MIB, "reserved_bytes": 64 * MIB, "allocations": 2}


def test_a_prediction_has_peaks_and_takes_the_last_line_for_the_end(tmp_path: Path) -> None:
    text = 'x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")\nprint("done: 1 tensor")'
    found = predicted(read_script(script_of(tmp_path, text)))
    assert (found.why_not, found.allocated_bytes, found.allocated_range) == ("", 64 * MIB, None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('if torch.cuda.device_count() > 7:\n    print("done: 8 cards")', "did not print 'done: 8"),
        ('raise ValueError("no data")\nprint("done: 0 steps")', "ValueError: no data"),
    ],
)
def test_a_script_that_does_not_reach_its_end_says_why(tmp_path: Path, text: str, why: str) -> None:
    assert why in predicted(read_script(script_of(tmp_path, text))).why_not
