"""Prepares a script's process for a trial, a run whose file writes are redirected and discarded."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from plimsoll.base.errors import InputError
from plimsoll.base.telemetry.folder import folders, private_folder
from plimsoll.prediction.trials import scratch_layer
from plimsoll.torch.simulated.compiled.settings import compiled_folder

_TEMPORARY = "temporary"


def free_folders() -> list[Path]:
    """Returns the folders in which a trial may change real files.

    They contain plimsoll's counters and compiled code.
    """
    with suppress(InputError):  # the script can run even if this folder cannot be made
        private_folder()
    return [*folders(), compiled_folder()]


def is_held_back(path: Path) -> bool:
    """Returns whether a trial redirects writes to this path, so that the real file is unchanged."""
    real = path.resolve()
    open_folders = (Path("/dev"), Path("/proc"), Path("/sys"), *map(Path.resolve, free_folders()))
    return not any(real.is_relative_to(folder) for folder in open_folders)


def enter_scratch(folder: str) -> None:
    """Checks that this process's writes are redirected. Call it before the script begins.

    It also sets the folder for the script's temporary files. This folder lies inside the trial's
    folder, so plimsoll does not list the temporary files among the files that the script wrote.

    Raises:
        InputError: If this process would write to real files.
    """
    if scratch_layer.is_wanted() and not scratch_layer.is_active():
        raise InputError(
            "plimsoll cannot discard what the script writes, because this Python ignores "
            "LD_PRELOAD; --keep-writes runs the script and keeps its writes"
        )
    temporary = Path(folder) / _TEMPORARY
    temporary.mkdir(mode=0o700, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
