"""Tests libraries that replace cudaMalloc, as torch_memory_saver does when LD_PRELOAD names it."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.simulated import PROGRAMS, output_of, simulate

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")

FOLDER = PROGRAMS / "sleeping"
DRIVER = (
    *("cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate", "cuMemRelease", "cuMemMap"),
    *("cuMemSetAccess", "cuMemUnmap"),
)
RUNTIME = ("cudaGetDevice", "cudaMallocHost", "cudaFreeHost", "cudaMemcpy")
PRELOAD = "PLIMSOLL_LD_PRELOAD"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiles the library, and links it to stubs of libcuda and libcudart. Deletes the stubs."""
    folder = tmp_path_factory.mktemp("preloaded")
    for name, functions in (("libcuda.so.1", DRIVER), ("libcudart.so.99", RUNTIME)):
        lines = "".join(f"int {function}() {{ return 999; }}\n" for function in functions)
        (folder / f"{name}.c").write_text(lines)
        (folder / f"{name}.map").write_text(f"{name} {{ global: *; }};")
        command = ["gcc", "-shared", "-fPIC", f"{name}.c", f"-Wl,-soname,{name}", "-o", name]
        if name != "libcuda.so.1":
            command += [f"-Wl,--version-script={name}.map"]
        subprocess.run(command, cwd=folder, check=True)
    sources = [str(FOLDER / name) for name in ("memory.cpp", "preloaded.cpp")]
    command = ["g++", "-std=c++20", "-shared", "-fPIC", *sources, "-Wl,--no-as-needed"]
    command += ["libcuda.so.1", "libcudart.so.99", "-o", "preloaded.so"]
    subprocess.run(command, cwd=folder, check=True)
    for name in ("libcuda.so.1", "libcudart.so.99"):
        (folder / name).unlink()
    return folder / "preloaded.so"


def test_a_preloaded_library_gives_pytorch_its_segments_and_takes_them_back(library: Path) -> None:
    script = FOLDER / "preloaded.py"
    out = output_of(script, arguments=[str(library)], environment={PRELOAD: str(library)})
    found = json.loads(out)
    free = found["free"]
    assert free["start"] - free["taken"] == 64 + 100 + 32
    assert free["asleep"] - free["taken"] in {100, 32}
    assert free["awake"] == free["taken"]
    assert found["counts"] == [0, 2, 0]
    assert free["end"] == free["start"]


def test_elastic_refuses_a_preloaded_library_in_one_line(library: Path) -> None:
    done = simulate(
        "import torch; torch.zeros(1, device='cuda')",
        *("--allocator", "elastic"),
        environment={PRELOAD: str(library)},
    )
    assert done.returncode != 0
    assert "only with --allocator native" in done.stderr


def test_a_preloaded_library_that_cannot_be_loaded_stops_nothing(tmp_path: Path) -> None:
    out = output_of(
        "import torch; print(torch.zeros(1, device='cuda').shape)",
        environment={PRELOAD: str(tmp_path / "missing.so")},
    )
    assert "torch.Size([1])" in out
