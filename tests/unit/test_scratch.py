"""The scratch layer: programs see what they write, and real files stay as they are.

The programs run with the layer's library before libc, and without PyTorch.
"""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from plimsoll.prediction.parts import Written
from plimsoll.prediction.scratch import scratch_environment, written
from tests.apart import ROOT, command_of

State = dict[str, tuple[str, int, bytes]]


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """A folder with something of each kind."""
    folder = tmp_path / "real"
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "old.txt").write_text("old\n")
    (folder / "rights").write_text("mine")
    (folder / "rights").chmod(0o640)
    (folder / "sub" / "in.txt").write_text("in\n")
    (folder / "sub" / "deep" / "end.txt").write_text("end\n")
    (folder / "link.txt").symlink_to("sub/in.txt")
    (folder / "link").symlink_to(folder / "sub")
    (folder / "broken").symlink_to("nowhere")
    return folder


def state_of(folder: Path) -> State:
    """All in a folder: what it is, its mode, and its contents."""
    return {str(path.relative_to(folder)): entry_of(path) for path in sorted(folder.rglob("*"))}


def entry_of(path: Path) -> tuple[str, int, bytes]:
    status = path.lstat()
    kind = stat.filemode(status.st_mode)[0]
    if kind == "l":
        return kind, 0, os.fsencode(path.readlink())
    mode = stat.S_IMODE(status.st_mode)
    return kind, mode, path.read_bytes() if kind == "-" else b""


class Layer:
    """A layer over real folders; each `run` is a process of its own that sees it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        self.folder = folder
        self.environment = os.environ | scratch_environment(folder)

    def run(self, command: list[str], folder: Path) -> str:
        done = subprocess.run(
            command, cwd=folder, env=self.environment | {"PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def python(self, text: str, folder: Path) -> str:
        return self.run([sys.executable, "-c", textwrap.dedent(text)], folder)

    def shell(self, text: str, folder: Path) -> str:
        return self.run(["/bin/sh", "-ec", text], folder)

    def written(self, folder: Path) -> list[Written]:
        prefix = f"{folder}/"
        return [
            Written(one.path.removeprefix(prefix), one.bytes, one.kind)
            for one in written(self.folder)
        ]


@pytest.fixture
def layer(tmp_path: Path) -> Layer:
    return Layer(tmp_path / "scratch")


def in_the_layer(test: Callable[..., None]) -> Callable[..., None]:
    """Let a test run in a process over a layer, in the real folder, which must stay as it is."""

    def run(real: Path, layer: Layer) -> None:
        before = state_of(real)
        layer.run([sys.executable, *command_of(test, [])], real)
        assert state_of(real) == before

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    run.__wrapped__ = test  # type: ignore[attr-defined]
    run.__signature__ = __import__("inspect").signature(lambda real, layer: None)  # type: ignore[attr-defined]
    return run
