"""Tests that Ctrl-C ends a starting command silently, and that nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from plimsoll.torch.building.compiler import build
from plimsoll.torch.simulated.library import SIMULATED_GPU
from tests.recordings import EXAMPLES
from tests.simulated import PROGRAMS

if TYPE_CHECKING:
    from pathlib import Path

RECORDING = str(EXAMPLES / "gpt2_adamw.pickle.gz")
SIMULATE = ("run", "--simulate", "T4")

# The sitecustomize.py in this folder sends SIGINT when a certain module is imported.
SITE = PROGRAMS / "interrupts" / "site"


@pytest.mark.parametrize(
    ("arguments", "module"),
    [
        (("gpus",), "plimsoll.cli.app"),
        (("gpus",), "typer"),
        (("gpus",), "plimsoll.engine.gpus.profiles"),
        (("replay", RECORDING), "numpy"),
        (("replay", RECORDING), "pyarrow.lib"),
        (("explain", RECORDING), "plimsoll.explanation.text"),
        (("view", RECORDING), "plimsoll.page.server"),
        (("top", "--once"), "plimsoll.integrations.top.text"),
        (("predict", "script.py"), "plimsoll.prediction.predict"),
        (("predict", "script.py"), "plimsoll.prediction.child.program"),
        (("predict", "script.py"), "plimsoll.torch.simulated.simulation"),
        (("predict", "script.py"), "torch"),
        ((*SIMULATE, "script.py"), "plimsoll.prediction.child_process"),
        ((*SIMULATE, "script.py"), "plimsoll.prediction.child.program"),
        ((*SIMULATE, "script.py"), "plimsoll.torch.simulated.simulation"),
        ((*SIMULATE, "script.py"), "torch"),
    ],
)
def test_an_interrupt_while_modules_are_imported(
    arguments: tuple[str, ...], module: str, tmp_path: Path
) -> None:
    if "script.py" in arguments:
        pytest.importorskip("torch")
        build(SIMULATED_GPU)  # built first, because building prints a line
    (tmp_path / "temporary").mkdir()
    (tmp_path / "script.py").write_text("import torch\ntorch.empty(1, device='cuda')\n")
    done = subprocess.run(
        [sys.executable, "-m", "plimsoll", *arguments],
        capture_output=True, text=True, check=False, cwd=tmp_path, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), timeout=300,
        env=os.environ
        | {
            "INTERRUPTED_AT": module,
            "PYTHONPATH": str(SITE),
            "TMPDIR": str(tmp_path / "temporary"),
        },
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert list((tmp_path / "temporary").iterdir()) == []
