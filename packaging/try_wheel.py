"""Installs a wheel as somebody new to plimsoll would, with nothing else on the PATH, and uses it.

    python packaging/try_wheel.py dist/plimsoll_gpu-0.1.0-cp311-…-x86_64.whl

It makes an empty environment with this Python, installs the wheel, asks it about the recordings of
the examples, and prints what each step took. It fails if a step does not end as it should. With
`--with-compiler` the PATH stays as it is: for a source distribution, which is built.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import dataclass
from pathlib import Path

RECORDINGS = Path(__file__).parents[1] / "examples" / "recordings"
TRAINING = str(RECORDINGS / "gpt2_adamw.pickle.gz")
OUT_OF_MEMORY = str(RECORDINGS / "gpt2_adamw_oom.pickle.gz")
IS_LINUX = sys.platform == "linux"
PYTORCH_IS_MISSING = "PyTorch is not installed here: pip install"
NEEDS_LINUX = "needs Linux: "


@dataclass(frozen=True)
class Step:
    """A command of plimsoll's, and how it has to end.

    Attributes:
        arguments: Of the command.
        says: A part of what it prints.
        status: Its exit status.
    """

    arguments: tuple[str, ...]
    says: str
    status: int = 0


def steps(page: Path) -> list[Step]:
    """What is tried.

    Args:
        page: The file of the page that `view` writes.
    """
    missing = PYTORCH_IS_MISSING if IS_LINUX else NEEDS_LINUX
    script = str(Path(__file__))  # any file; it does not come to running it
    return [
        Step(("--version",), "plimsoll "),
        Step(("gpus",), "RTX 4090"),
        Step(("replay", TRAINING), "Every address and segment is as recorded."),
        Step(("explain", OUT_OF_MEMORY), "out of memory"),
        Step(("view", TRAINING, "-o", str(page)), "plimsoll"),
        Step(("metrics", "--rules"), "groups:"),
        Step(("sweep", TRAINING, "--vary=gpu=RTX 4090,H100"), "RTX 4090"),
        Step(("top", "--once"), "next:" if IS_LINUX else NEEDS_LINUX, 0 if IS_LINUX else 2),
        Step(("predict", script), missing, 2),
        Step(("run", "--simulate", "H100", script), missing, 2),
        Step(("doctor",), "Works here:", 1 if IS_LINUX else 0),
    ]


def main() -> None:
    """Try the wheel that the command line names."""
    parser = argparse.ArgumentParser(description="Install a wheel and use it.")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--with-compiler", action="store_true")
    asked = parser.parse_args()
    wheel = asked.wheel.resolve()
    with tempfile.TemporaryDirectory(prefix="plimsoll-try-") as temporary:
        folder = Path(temporary)
        began = time.monotonic()
        venv.create(folder / "environment", with_pip=True)
        programs = folder / "environment" / ("bin" if os.name == "posix" else "Scripts")
        _report("an empty environment", began)
        path = str(programs)
        if asked.with_compiler:
            path += os.pathsep + os.environ["PATH"]
        install: list[str | Path] = [programs / "python", "-m", "pip", "install", "-q", wheel]
        _run(install, folder, path, f"pip install {wheel.name}", "", 0)
        page = folder / "page.html"
        for step in steps(page):
            command: list[str | Path] = [programs / "plimsoll", *step.arguments]
            named = [Path(one).name for one in step.arguments]
            _run(command, folder, path, f"plimsoll {' '.join(named)}", step.says, step.status)
        if page.stat().st_size < 100_000:
            sys.exit(f"the page has {page.stat().st_size} bytes only")
        _report("all of it", began)


def _run(
    command: list[str | Path], folder: Path, path: str, name: str, says: str, status: int
) -> None:
    began = time.monotonic()
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(  # noqa: S603
        [*map(str, command)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",  # what a program prints there may have another encoding
        check=False,
    )
    if done.returncode != status or says.lower() not in done.stdout.lower():
        sys.exit(f"{done.stdout}\n{name}: ended with status {done.returncode}, not {status}, or "
                 f"did not say {says!r}")  # fmt: skip
    _report(name, began)


def _report(name: str, began: float) -> None:
    print(f"{time.monotonic() - began:7.1f} s  {name}", flush=True)


if __name__ == "__main__":
    main()
