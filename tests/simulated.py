"""Scripts on simulated GPUs, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def simulate(
    folder: Path, text: str, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a script that has imported torch."""
    path = folder / "script.py"
    path.write_text("import torch\n" + text)
    return subprocess.run(
        [sys.executable, "-m", "plimsoll", "run", "--simulate", "A100-80GB", *options, str(path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, **environment},
    )


def assert_runs(folder: Path, text: str, *options: str, **environment: str) -> str:
    """What it prints, once it has ended well."""
    done = simulate(folder, text, *options, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout
