"""Installs a wheel as somebody new to plimsoll would, and runs commands of plimsoll.

    python packaging/try_wheel.py dist/plimsoll_gpu-0.1.0-cp311-…-x86_64.whl

It makes an empty environment with this Python, installs the wheel, runs plimsoll on the recordings
of the examples, and prints how long each step took. It fails if a step does not end as it should.
The PATH has only the environment's programs. With `--with-compiler`, the PATH also has the folders
of the caller's PATH, so that pip can build a source distribution.

    python packaging/try_wheel.py --torch 2.13.0 dist/plimsoll_gpu-0.1.0-cp311-…-x86_64.whl

With `--torch` it also installs PyTorch, and runs `plimsoll predict` on an example script. If no
compiler is on the PATH, `plimsoll predict` uses the compiled library that the wheel contains.
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

EXAMPLES = Path(__file__).parents[1] / "examples"
RECORDINGS = EXAMPLES / "recordings"
TRAINING = str(RECORDINGS / "gpt2_adamw.pickle.gz")
OUT_OF_MEMORY = str(RECORDINGS / "gpt2_adamw_oom.pickle.gz")
IS_LINUX = sys.platform == "linux"
PYTORCH_IS_MISSING = "PyTorch is not installed here: pip install"
NEEDS_LINUX = "needs Linux: "


@dataclass(frozen=True)
class Step:
    """A command of plimsoll, and how it must end.

    Attributes:
        arguments: The command's arguments.
        says: A text that the command must print.
        status: The exit status that the command must have.
    """

    arguments: tuple[str, ...]
    says: str
    status: int = 0


def steps(page: Path) -> list[Step]:
    """Returns the commands to try.

    Args:
        page: The file to which `view` writes its page.
    """
    missing = PYTORCH_IS_MISSING if IS_LINUX else NEEDS_LINUX
    script = str(Path(__file__))  # any file will do, because the script is never run
    return [
        Step(("--version",), "plimsoll "),
        Step(("gpus",), "RTX 4090"),
        Step(("replay", TRAINING), "every address and segment as recorded"),
        Step(("explain", OUT_OF_MEMORY), "out of memory"),
        Step(("view", TRAINING, "-o", str(page)), "plimsoll"),
        Step(("metrics", "--rules"), "groups:"),
        Step(("sweep", TRAINING, "--vary=gpu=RTX 4090,H100"), "RTX 4090"),
        Step(("top", "--once"), "next:" if IS_LINUX else NEEDS_LINUX, 0 if IS_LINUX else 2),
        Step(("predict", script), missing, 2),
        Step(("run", "--simulate", "H100", script), missing, 2),
        Step(("doctor",), "Works here:", 1),  # 1: without PyTorch, nothing can be predicted
    ]


PREDICTION = Step(
    ("predict", str(EXAMPLES / "train_gpt.py"), "--gpu", "RTX 4060 Laptop", "--", "--batch-size=8"),
    "fits on RTX 4060 Laptop",
)


def main() -> None:
    """Try the wheel that the command line names."""
    parser = argparse.ArgumentParser(description="Install a wheel and use it.")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--with-compiler", action="store_true")
    parser.add_argument("--torch", metavar="VERSION_OR_FILE", help="predict with this PyTorch")
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
        place = _Place(folder, programs, path)
        place.install(str(wheel), f"{wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB")
        page = folder / "page.html"
        for step in steps(page):
            place.take(step)
        if asked.torch:
            is_file = Path(asked.torch).exists()
            place.install(asked.torch if is_file else f"torch=={asked.torch}", "PyTorch")
            place.take(PREDICTION)
        if page.stat().st_size < 100_000:
            sys.exit(f"the page has {page.stat().st_size} bytes only")
        _report("all of it", began)


@dataclass(frozen=True)
class _Place:
    """An environment to try things in.

    Attributes:
        folder: The working folder of the commands. Its folder `cache` is their XDG_CACHE_HOME.
        programs: The folder with the environment's programs.
        path: The PATH of all commands.
    """

    folder: Path
    programs: Path
    path: str

    def install(self, package: str, name: str) -> None:
        """Install a package, and say how long it took."""
        command = [str(self.programs / "python"), "-m", "pip", "install", "-q", package]
        self._run(command, f"pip install {name}", "", 0)

    def take(self, step: Step) -> None:
        """Run a command of plimsoll's, and say how long it took."""
        named = [Path(one).name for one in step.arguments]
        command = [str(self.programs / "plimsoll"), *step.arguments]
        self._run(command, f"plimsoll {' '.join(named)}", step.says, step.status)

    def _run(self, command: list[str], name: str, says: str, status: int) -> None:
        began = time.monotonic()
        cache = str(self.folder / "cache")
        environment = {**os.environ, "PATH": self.path, "XDG_CACHE_HOME": cache}
        done = subprocess.run(  # noqa: S603
            command,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",  # a program may print in an encoding other than UTF-8
            check=False,
        )
        if done.returncode != status or says.lower() not in done.stdout.lower():
            sys.exit(f"{done.stdout}\n{name}: ended with status {done.returncode}, not {status}, "
                     f"or did not say {says!r}")  # fmt: skip
        _report(name, began)


def _report(name: str, began: float) -> None:
    print(f"{time.monotonic() - began:7.1f} s  {name}", flush=True)


if __name__ == "__main__":
    main()
