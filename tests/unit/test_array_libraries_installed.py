"""Tests choosing CuPy, Numba and RMM for plimsoll to serve, and the choices that it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import plimsoll
from plimsoll import InputError
from plimsoll.base.units import MiB
from plimsoll.cli.app import app
from plimsoll.engine import current
from plimsoll.engine.current import device_number
from plimsoll.offloading.tiers.limits import Tiers
from plimsoll.torch.array_libraries import cupy_arrays, rmm_resources, serving
from tests.unit.array_stand_ins import Cupy, Engines, NumbaBase, RmmStream, numba_cuda


@pytest.fixture
def engines() -> Engines:
    return Engines("elastic")


class TestServing:
    @pytest.fixture(autouse=True)
    def _nothing_is_served(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(serving, "_served", set())

    @staticmethod
    def put(monkeypatch: pytest.MonkeyPatch, name: str, **contents: Any) -> None:
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)

    def test_each_is_put_in_place_once(
        self, monkeypatch: pytest.MonkeyPatch, engines: Engines
    ) -> None:
        cupy, cuda = Cupy(), numba_cuda()
        self.put(monkeypatch, "cupy", cuda=cupy.cuda)
        self.put(monkeypatch, "numba")
        self.put(monkeypatch, "numba.cuda", **vars(cuda))
        serving.check_libraries(["cupy", "numba"])
        serving.serve_libraries(["cupy", "numba"], engines)
        first = cupy.allocator
        assert first(MiB).ptr
        serving.check_libraries(["cupy", "numba"])  # Numba's memory manager is already plimsoll's
        serving.serve_libraries(["cupy", "numba"], engines)
        assert cupy.allocator is first

    def test_rmm_gets_a_resource_for_each_gpu(
        self, monkeypatch: pytest.MonkeyPatch, engines: Engines
    ) -> None:
        resources: dict[int, Any] = {}
        mr = SimpleNamespace(
            CallbackMemoryResource=lambda allocate, deallocate: (allocate, deallocate),
            set_per_device_resource=resources.__setitem__,
        )
        self.put(monkeypatch, "rmm", mr=mr, __version__="26.10")
        self.put(monkeypatch, "rmm.pylibrmm")
        self.put(monkeypatch, "rmm.pylibrmm.stream", Stream=RmmStream)
        monkeypatch.setattr(rmm_resources, "count_gpus", lambda: 2)
        serving.check_libraries(["rmm"])
        serving.serve_libraries(["rmm"], engines)
        for device, (allocate, deallocate) in resources.items():
            address = allocate(MiB, RmmStream(0))
            assert engines.allocated(device) == MiB
            deallocate(address, MiB, RmmStream(0))
        assert list(resources) == [0, 1]

    def test_an_old_rmm_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.put(monkeypatch, "rmm", __version__="23.2")
        self.put(monkeypatch, "rmm.pylibrmm")
        self.put(monkeypatch, "rmm.pylibrmm.stream", Stream=object)
        with pytest.raises(InputError, match=r"RMM 23\.2 is too old"):
            serving.check_libraries(["rmm"])

    def test_numba_is_refused_once_it_has_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cuda = numba_cuda()
        cuda.set_memory_manager(NumbaBase)
        self.put(monkeypatch, "numba")
        self.put(monkeypatch, "numba.cuda", **vars(cuda))
        with pytest.raises(InputError, match="Numba manages its GPU memory already"):
            serving.check_libraries(["numba"])

    def test_what_is_not_installed_is_refused_with_what_gets_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "cupy", None)
        with pytest.raises(InputError, match="CuPy is not installed here: pip install 'cupy-cuda"):
            serving.check_libraries(["cupy"])

    def test_a_broken_library_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(_name: str) -> None:
            raise ImportError("libnvrtc.so.13 is missing")

        monkeypatch.setattr(cupy_arrays, "importlib", SimpleNamespace(import_module=fail))
        with pytest.raises(InputError, match=r"CuPy cannot be imported: libnvrtc\.so\.13"):
            serving.check_libraries(["cupy"])


class TestInstall:
    def test_there_must_be_something_to_serve(self) -> None:
        with pytest.raises(InputError, match="name a library, such as cupy=True"):
            plimsoll.install(pytorch=False)

    def test_simulated_gpus_run_pytorch_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        session = import_module("plimsoll.torch.session.install")
        monkeypatch.setattr(session, "current_engines", lambda: Engines("elastic"))
        monkeypatch.setattr(session, "is_installed", lambda: False)
        with pytest.raises(InputError, match="cupy and rmm cannot run on simulated GPUs"):
            plimsoll.install(cupy=True, rmm=True)

    def test_without_a_gpu_it_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("plimsoll.torch.session.install.count_gpus", lambda: 0)
        with pytest.raises(InputError, match="there is no NVIDIA GPU here"):
            plimsoll.install(pytorch=False, cupy=True)

    def test_a_program_without_pytorch_is_served(self) -> None:
        program = """
import sys, types
sys.modules["torch"] = None  # it is not installed
from tests.unit.array_stand_ins import Cupy, SimulatedGpu, _core
from plimsoll.torch.live import live_engines
import plimsoll.torch.session.install as session
gpu = SimulatedGpu("1GiB")
live_engines._core = types.SimpleNamespace(
    **{name: getattr(_core, name) for name in ("AllocatorConfig", "ConfigError", "host_memory")},
    Engine=types.SimpleNamespace(
        cuda=lambda *choice: _core.Engine.simulated(gpu._driver, *choice)
    ),
)
session.count_gpus = lambda: 1
import plimsoll.engine.current as current
current.count_gpus = session.count_gpus
cupy = Cupy()
sys.modules["cupy"] = cupy
import plimsoll
for _ in range(2):
    plimsoll.install(pytorch=False, cupy=True)
kept = cupy.allocator(1 << 20)
print(plimsoll.memory_stats()["allocated_bytes.all.current"])
try:
    plimsoll.install("native", pytorch=False, cupy=True)
except plimsoll.InputError as error:
    print(error)
"""
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PLIMSOLL_REPORT": "1"},
        )
        assert done.returncode == 0, done.stderr
        allocated, refusal = done.stdout.splitlines()
        assert int(allocated) == MiB
        assert refusal.startswith("the elastic allocator is installed already")
        assert done.stderr.startswith("plimsoll: GPU 0, the elastic allocator: peak allocated 1.00")

    def test_which_gpu_is_meant_is_told_before_cuda_runs(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Finds the GPU without `is_available()`, after which a forked process cannot use CUDA."""
        torch = pytest.importorskip("torch")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("it makes CUDA ready"))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(current, "count_gpus", lambda: pytest.fail("it makes CUDA ready"))
        assert device_number(1) == 1
        with pytest.raises(InputError, match="there is no GPU 2; there are 2"):
            device_number(2)
        # a CPU build of PyTorch counts no GPUs
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
        monkeypatch.setattr(current, "count_gpus", lambda: 1)
        assert device_number() == 0

    def test_the_command_tells_the_scripts_process(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """Passes the chosen libraries to the script's process in environment variables."""
        told: dict[str, str] = {}

        def become(_path: str, _command: list[str], environment: dict[str, str]) -> None:
            told.update(environment)
            raise SystemExit(0)

        monkeypatch.setattr("plimsoll.cli.run.count_gpus", lambda: 1)
        monkeypatch.setattr("plimsoll.torch.building.versions.is_cuda_build", lambda: True)
        monkeypatch.setattr("plimsoll.torch.building.compiler.build", lambda _library: None)
        monkeypatch.setattr(os, "execve", become)
        script = tmp_path / "script.py"
        script.write_text("")
        done = CliRunner().invoke(app, ["run", "--cupy", "--rmm", str(script)])
        assert done.exit_code == 0, done.output
        names = ("ALLOCATOR", "CUPY", "NUMBA", "RMM")
        found = [told.get(f"PLIMSOLL_{name}") for name in names]
        assert found == ["elastic", "1", None, "1"]

    def test_the_environment_asks_for_libraries(self, monkeypatch: pytest.MonkeyPatch) -> None:
        torch = pytest.importorskip("torch")
        session = import_module("plimsoll.torch.session.install")
        asked: list[Any] = []
        monkeypatch.setattr(session, "is_cuda_build", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(session, "watch_if_asked", lambda _torch: None)
        monkeypatch.setattr(
            session, "_install", lambda *choice, plan: asked.append((*choice, plan))
        )
        for name, value in {"ALLOCATOR": "native", "CUPY": "1", "NUMBA": "0", "RMM": "yes"}.items():
            monkeypatch.setenv(f"PLIMSOLL_{name}", value)
        session.install_from_environment()
        assert asked == [("native", None, Tiers(), ["cupy", "rmm"], None)]

    @pytest.mark.parametrize(
        ("options", "refusal"),
        [
            (["--simulate", "H100", "--cupy"], "they do not go with --simulate"),
            (["--allocator", "torch", "--numba"], "PyTorch's allocator serves PyTorch alone"),
        ],
    )
    def test_the_command_refuses_what_cannot_be(
        self, options: list[str], refusal: str, tmp_path: Path
    ) -> None:
        script = tmp_path / "script.py"
        script.write_text("")
        done = CliRunner().invoke(app, ["run", *options, str(script)])
        assert done.exit_code != 0
        assert refusal in str(done.exception) + done.output
