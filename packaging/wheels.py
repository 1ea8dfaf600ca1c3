"""Builds the wheels for Linux, for every processor in MACHINES, on any machine with Linux.

The compiler is the clang of the package `ziglang`. It can compile for every glibc since 2.17, and
it keeps the building machine's compiler and libraries out of the wheels. Wheels are built from the
source distribution. One wheel serves Python 3.12 and all later versions, by Python's stable ABI.
This wheel also holds small libraries that read interpreter frames: one for each Python version
from 3.12 on that the command line names, if bindings/known_frames.h knows that version's frames.
auditwheel and abi3audit refuse a wheel that needs more than its name says. The wheels for x86-64
also hold the library of the simulated GPU for each release of PyTorch that the command line names.
`prebuilt.py` builds these libraries.

    python packaging/wheels.py dist/*.tar.gz --python python3.11 --python python3.12 --torch 2.15.0
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from plimsoll.torch.building.prebuilt import FOLDER as PREBUILT
from plimsoll.torch.simulated.library import SIMULATED_GPU

sys.path.insert(0, str(Path(__file__).parent))
from bundled import bundled_parts, write_licences, write_sbom
from prebuilt import licence, prebuild
from zig import GLIBC, zig

ROOT = Path(__file__).parents[1]
MACHINES = ("x86_64", "aarch64")
PREBUILT_MACHINE = "x86_64"
"""The only processor that `prebuilt.py` builds for."""
LARGEST_BYTES = 60_000_000
FIRST_STABLE_ABI = (3, 12)
FIRST_UNKNOWN_FRAMES = (3, 14)
"""The first Python whose frames bindings/known_frames.h cannot read."""
_FROM_PYTORCH = [f"--exclude=lib{name}.so" for name in SIMULATED_GPU.libraries]
BUILD_REQUIREMENTS = ("cmake", "ninja", "scikit-build-core>=0.11", "nanobind>=2.4")


@dataclass(frozen=True)
class Python:
    """An interpreter to build with.

    Attributes:
        path: Its program, in an environment that has the build requirements.
        version: Major and minor version.
        soabi: The tag of its own ABI in file names.
        headers: The folder of its headers.
    """

    path: Path
    version: tuple[int, int]
    soabi: str
    headers: Path

    @property
    def has_stable_abi(self) -> bool:
        """Whether a wheel that is built with this interpreter also serves later versions."""
        return self.version >= FIRST_STABLE_ABI


def run(*command: str | Path, **environment: str) -> str:
    """Runs a program and returns its output. If the program fails, this program ends."""
    done = subprocess.run(  # noqa: S603
        [*map(str, command)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout}{Path(command[0]).name} failed with status {done.returncode}")
    return done.stdout.strip()


def prepare(command: str, environments: Path) -> Python:
    """Makes an environment with the build requirements, and returns its interpreter."""
    folder = environments / Path(command).name
    path = folder / "bin" / "python"
    if not path.exists():
        run("uv", "venv", "-q", "--python", command, folder)
    run("uv", "pip", "install", "-q", "--python", path, *BUILD_REQUIREMENTS)
    ask = (
        "import sys, sysconfig; print(*sys.version_info[:2], sysconfig.get_config_var('SOABI'), "
        "sysconfig.get_path('include'))"
    )
    major, minor, soabi, headers = run(path, "-c", ask).split(maxsplit=3)
    return Python(path, (int(major), int(minor)), soabi, Path(headers))


def unpack(sdist: Path, place: Path) -> Path:
    """Unpacks a source distribution into `place`, and returns the folder of the sources."""
    with tarfile.open(sdist) as archive:
        archive.extractall(place, filter="data")
    (folder,) = place.iterdir()
    return folder


def build(
    sdist: Path,
    python: Python,
    frames_of: list[Python],
    machine: str,
    libraries: dict[str, Path],
    output: Path,
) -> Path:
    """Builds a wheel for one processor, and returns the wheel's path.

    If `python` has the stable ABI, the wheel serves this Python version and later ones. Otherwise
    it serves only this version.

    Args:
        sdist: The source distribution.
        python: The interpreter to build with.
        frames_of: The Pythons whose interpreter frames a wheel for the stable ABI can read.
        machine: One of MACHINES.
        libraries: The prebuilt libraries for the wheel, by release of PyTorch.
        output: The folder for the wheel.
    """
    settings = [f"-Ccmake.define.CMAKE_TOOLCHAIN_FILE={ROOT / 'packaging/zig.cmake'}"]
    if python.has_stable_abi:
        headers = ";".join(str(one.headers) for one in frames_of)
        settings.append(f"-Cwheel.py-api=cp{''.join(map(str, python.version))}")
        settings.append(f"-Ccmake.define.PLIMSOLL_FRAMES_OF={headers}")
    with tempfile.TemporaryDirectory(prefix="plimsoll-wheel-") as temporary:
        place = Path(temporary)
        source = unpack(sdist, place / "source")
        brought = source / "src" / PREBUILT.relative_to(ROOT / "src")
        brought.mkdir()
        for library in libraries.values():
            shutil.copy2(library, brought)
        licences = {release: licence(release) for release in libraries}
        parts = bundled_parts(python.path, zig(), licences)
        write_licences(parts, source)
        settings.append(f"-Ccmake.define.PLIMSOLL_SBOM={write_sbom(parts, source, place)}")
        run(
            "uv", "build", "--wheel", "--no-build-isolation", "--python", python.path,
            "--out-dir", place / "built", *settings, source,
            PATH=f"{python.path.parent}:{os.environ['PATH']}",
            PLIMSOLL_ZIG=str(zig()),
            PLIMSOLL_TARGET=f"{machine}-linux-gnu.{GLIBC}",
            _PYTHON_HOST_PLATFORM=f"linux-{machine}",
            SETUPTOOLS_EXT_SUFFIX=f".{python.soabi.replace(os.uname().machine, machine)}.so",
        )  # fmt: skip
        (made,) = (place / "built").glob("*.whl")
        # auditwheel finds the oldest glibc that the wheel works with, and names the wheel after it.
        run("auditwheel", "repair", *_FROM_PYTORCH, "-w", place / "checked", made)
        (wheel,) = (place / "checked").glob("*.whl")
        needed = max(map(int, re.findall(r"manylinux_2_(\d+)", wheel.name)))
        if needed > int(GLIBC.split(".")[1]):
            sys.exit(f"{wheel.name} needs a newer glibc than {GLIBC}")
        if python.has_stable_abi:
            run("abi3audit", "--strict", wheel)
        if wheel.stat().st_size > LARGEST_BYTES:
            sys.exit(f"{wheel.name} is larger than {LARGEST_BYTES / 1e6:.0f} MB")
        output.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy2(wheel, output))


def main() -> None:
    """Builds the wheels that the command line asks for."""
    parser = argparse.ArgumentParser(description="Build the wheels for Linux.")
    parser.add_argument("sdist", type=Path)
    parser.add_argument("--python", action="append", required=True, metavar="COMMAND")
    parser.add_argument("--machine", action="append", choices=MACHINES)
    parser.add_argument("--torch", action="append", default=[], metavar="RELEASE")
    parser.add_argument("--environments", type=Path, default=ROOT / "build" / "wheels")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "dist")
    asked = parser.parse_args()
    pythons = sorted(
        (prepare(command, asked.environments) for command in asked.python),
        key=lambda one: one.version,
    )
    stable = [one for one in pythons if one.has_stable_abi]
    known = [one for one in stable if one.version < FIRST_UNKNOWN_FRAMES]
    prebuilt = {release: prebuild(release) for release in asked.torch}
    for python in [one for one in pythons if not one.has_stable_abi] + stable[:1]:
        for machine in asked.machine or MACHINES:
            libraries = prebuilt if machine == PREBUILT_MACHINE else {}
            wheel = build(asked.sdist, python, known, machine, libraries, asked.output)
            size = f"{wheel.stat().st_size / 1e6:.1f} MB"
            print(f"{wheel}: {size}, {len(libraries)} prebuilt libraries", flush=True)


if __name__ == "__main__":
    main()
