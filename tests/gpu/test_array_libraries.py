"""Tests on a real GPU that CuPy, Numba and RMM allocate through plimsoll's allocators."""

from __future__ import annotations

import gc
import importlib.util
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import plimsoll
from plimsoll import InputError
from tests.apart import ROOT, in_a_process

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU"),
]

MIB = 1 << 20


def needs(*packages: str) -> pytest.MarkDecorator:
    """Returns a mark that skips a test if one of the libraries is not installed."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed here: {', '.join(missing)}")


def under_both(library: str) -> Callable[[Callable[[str], None]], Callable[[str], None]]:
    """Returns a decorator that runs a test under each of plimsoll's allocators, in new processes.

    The decorator skips the test if `library` is not installed.
    """

    def decorated(test: Callable[[str], None]) -> Callable[[str], None]:
        allocators = pytest.mark.parametrize("allocator", ["elastic", "native"])
        return needs(library)(allocators(in_a_process(test)))

    return decorated


def install(allocator: Any = "elastic", **options: Any) -> None:
    plimsoll.install(allocator, **options)
    torch.cuda.init()  # before this, PyTorch has no statistics


_BUILDING = re.compile(r"^plimsoll: (?:building|waiting for) [^\n]*\n", re.M)
"""Matches plimsoll's messages about building a library, or waiting for another build of it."""


def run_python(text: str) -> str:
    """Runs a program that must end with status 0 and write no errors. Returns its output."""
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        cwd=ROOT,
    )
    assert (done.returncode, _BUILDING.sub("", done.stderr)) == (0, "")
    return done.stdout


@under_both("cupy")
def test_cupys_arrays_and_pytorchs_tensors_share_one_memory(allocator: str) -> None:
    install(allocator, cupy=True)
    import cupy

    x = cupy.arange(16 * MIB, dtype=cupy.float32)
    assert torch.cuda.memory_allocated() == 64 * MIB
    assert int(x[:1000].sum()) == 499500
    del x
    gc.collect()
    assert torch.cuda.memory_allocated() == 0
    reserved = torch.cuda.memory_reserved()
    y = torch.ones(16 * MIB, device="cuda")
    assert torch.cuda.memory_reserved() == reserved
    shared = cupy.from_dlpack(y)
    del y
    assert float(shared.sum()) == 16 * MIB
    assert cupy.get_default_memory_pool().total_bytes() == 0


@under_both("cupy")
def test_cupy_computes_the_same_as_numpy_while_pytorch_works(allocator: str) -> None:
    install(allocator, cupy=True)
    import cupy
    import numpy

    generator = numpy.random.default_rng(0)
    kept: list[Any] = []
    for step in range(200):
        values = generator.integers(0, 1000, int(generator.integers(1, 2 * MIB)))
        tensor = torch.from_numpy(values).cuda()
        array = cupy.asarray(values)
        kept.append((int(((array * 3 + step) % 1009).sum()), int((tensor * 3 + step).sum())))
        expected = (int(((values * 3 + step) % 1009).sum()), int((values * 3 + step).sum()))
        assert kept[-1] == expected
    empty = cupy.empty((0, 7))
    assert empty.shape == (0, 7)


@under_both("cupy")
def test_a_streams_memory_is_used_again_while_its_work_goes_on(allocator: str) -> None:
    install(allocator, cupy=True)
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = cupy.zeros(8 * MIB, dtype=cupy.float32)
        for _ in range(200):  # the host queues all of this before the GPU is done
            x = x + 1
    stream.synchronize()
    assert float(x.min()) == float(x.max()) == 200
    assert torch.cuda.memory_stats()["reserved_bytes.all.peak"] <= 256 * MIB


@under_both("cupy")
def test_streams_come_and_go(allocator: str) -> None:
    install(allocator, cupy=True)
    import cupy

    results = []
    for i in range(100):
        with cupy.cuda.Stream(non_blocking=True):
            x = cupy.full(MIB, i, dtype=cupy.float32)
            for _ in range(5):
                x = x * 2
            results.append(x)
        del x
    cupy.cuda.Device().synchronize()
    gc.collect()
    assert [float(x[-1]) for x in results] == [float(32 * i) for i in range(100)]
    del results
    gc.collect()
    cupy.cuda.Device().synchronize()
    x = cupy.ones(64 * MIB, dtype=cupy.float32)
    assert float(x.sum()) == 64 * MIB
    assert torch.cuda.memory_allocated() == 256 * MIB


@needs("cupy")
@in_a_process
def test_pytorchs_streams_and_those_of_threads_are_streams_of_cupy() -> None:
    install(cupy=True)
    import cupy

    found: list[bool] = []

    def work(number: int, stream: Any) -> None:
        with stream:
            for i in range(50):
                x = cupy.full(MIB + number * 4096, i, dtype=cupy.float32)
                y = x + number
                del x
                found.append(float(y.min()) == float(y.max()) == i + number)

    side = torch.cuda.Stream()
    streams = [cupy.cuda.Stream.ptds, cupy.cuda.Stream.ptds]
    if hasattr(cupy.cuda.Stream, "from_external") and hasattr(side, "__cuda_stream__"):
        streams.append(cupy.cuda.Stream.from_external(side))
    else:
        streams.append(cupy.cuda.ExternalStream(side.cuda_stream))
    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 150


@under_both("cupy")
def test_cupys_failure_says_what_pytorchs_does_and_leaves_all_as_it_was(allocator: str) -> None:
    install(allocator, dedicated="1GiB", cupy=True)
    import cupy

    x = cupy.ones(64 * MIB, dtype=cupy.float32)
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError, match=r"Tried to allocate 2\.00 GiB"):
        cupy.empty(512 * MIB, dtype=cupy.float32)
    assert float(x.sum()) == 64 * MIB
    assert torch.cuda.memory_allocated() == 256 * MIB
    y = cupy.ones(128 * MIB, dtype=cupy.float32)
    assert float(y.sum()) == 128 * MIB


@needs("cupy")
def test_cupy_alone_needs_no_pytorch_and_ends_cleanly_with_all_in_use() -> None:
    printed = run_python(
        """
import sys
sys.modules["torch"] = None
import plimsoll
plimsoll.install(pytorch=False, cupy=True)
import cupy
x = cupy.arange(4 << 20, dtype=cupy.float32)
with cupy.cuda.Stream(non_blocking=True) as stream:
    y = cupy.ones(4 << 20, dtype=cupy.float32) * 2
stream.synchronize()
circle = [cupy.ones(1000)]
circle.append(circle)
print(int(x[:5].sum()), float(y.sum()) / len(y))
print(plimsoll.memory_stats()["allocated_bytes.all.current"] >= 32 << 20)
"""
    )
    assert printed.split() == ["10", "2.0", "True"]


@needs("cupy")
@in_a_process
def test_pytorch_may_come_later_to_the_same_memory() -> None:
    plimsoll.install(pytorch=False, cupy=True)
    import cupy

    x = cupy.ones(4 * MIB, dtype=cupy.float32)
    install(cupy=True)
    assert torch.cuda.memory_allocated() == 16 * MIB
    assert float(torch.as_tensor(x, device="cuda").sum()) == 4 * MIB


@needs("cupy")
def test_the_command_puts_cupy_on_the_same_memory(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, cupy\n"
        "torch.cuda.init()\n"
        "x = cupy.ones(4 << 20, dtype=cupy.float32)\n"
        "print(torch.cuda.memory_allocated() >> 20, float(x.sum()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "plimsoll", "run", "--cupy", str(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["16", str(float(4 << 20))]
    assert "GPU 0, the elastic allocator: peak allocated 16." in done.stderr


def numba_for_this_numpy() -> None:
    """Restores NumPy's old names that numba-cuda before 0.24 still uses."""
    import numpy

    for old, new in {"row_stack": "vstack", "in1d": "isin", "trapz": "trapezoid"}.items():
        if not hasattr(numpy, old):
            setattr(numpy, old, getattr(numpy, new))


@under_both("numba")
def test_numbas_arrays_are_of_the_same_memory(allocator: str) -> None:
    numba_for_this_numpy()
    install(allocator, numba=True)
    import numpy
    from numba import cuda

    @cuda.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def add(x: Any, y: Any, value: Any) -> None:
        i = cuda.grid(1)
        if i < x.size:
            y[i] = x[i] + value

    values = numpy.arange(4 * MIB, dtype=numpy.float32)
    x = cuda.to_device(values)
    y = cuda.device_array_like(x)
    assert torch.cuda.memory_allocated() == 32 * MIB
    add[4 * MIB // 256, 256](x, y, 5)
    assert (y.copy_to_host() == values + 5).all()
    tensor = torch.as_tensor(y, device="cuda")
    assert tensor.data_ptr() == y.__cuda_array_interface__["data"][0]
    del tensor, x, y
    gc.collect()
    assert torch.cuda.memory_allocated() == 0
    free, total = cuda.current_context().get_memory_info()
    assert 0 < free < total
    assert cuda.device_array(0, numpy.float32).size == 0


@under_both("numba")
def test_what_numba_frees_is_not_used_again_while_a_kernel_has_it(allocator: str) -> None:
    numba_for_this_numpy()
    install(allocator, numba=True)
    import numpy
    from numba import cuda

    @cuda.jit  # type: ignore[misc,untyped-decorator,unused-ignore]
    def fill(x: Any, value: Any, rounds: Any) -> None:
        i = cuda.grid(1)
        if i < x.size:
            delay = 0.0
            for step in range(rounds):
                delay = delay * 0.5 + step
            x[i] = value + delay * 0.0

    size = MIB
    streams = [cuda.stream() for _ in range(4)]
    kept = []
    for step in range(60):
        stream = streams[step % 4]
        gone = cuda.device_array(size, numpy.float32, stream=stream)
        fill[size // 256, 256, stream](gone, -1.0, 20000)  # a long kernel
        del gone  # while the kernel still runs
        result = cuda.device_array(size, numpy.float32, stream=streams[(step + 1) % 4])
        fill[size // 256, 256, streams[(step + 1) % 4]](result, float(step), 1)
        kept.append(result)
    cuda.synchronize()
    for step, result in enumerate(kept):
        found = result.copy_to_host()
        assert found.min() == found.max() == step


@needs("numba")
@in_a_process
def test_numbas_failure_says_what_pytorchs_does() -> None:
    install(dedicated="1GiB", numba=True)
    import numpy
    from numba import cuda
    from numba.cuda.cudadrv.driver import CudaAPIError

    with pytest.raises(CudaAPIError, match=r"Tried to allocate 2\.00 GiB"):
        cuda.device_array(2 << 30, numpy.uint8)
    assert cuda.device_array(1 << 29, numpy.uint8).size == 1 << 29
    x = cuda.device_array(1000, numpy.uint8)
    with pytest.raises(InputError, match="do not reach the elastic allocator's memory"):
        x.get_ipc_handle()


@needs("numba")
@in_a_process
def test_numba_is_refused_once_it_has_memory_and_pytorch_is_left_alone() -> None:
    from numba import cuda

    x = cuda.device_array(1000)
    with pytest.raises(InputError, match="Numba manages its GPU memory already"):
        plimsoll.install(numba=True)
    assert x.size == 1000
    # Here "native" names PyTorch's own allocator, not plimsoll's native allocator.
    assert torch.cuda.memory.get_allocator_backend() == "native"
    plimsoll.install()


@needs("numba")
def test_numba_ends_cleanly_with_all_in_use() -> None:
    printed = run_python(
        """
import plimsoll
plimsoll.install(numba=True)
import numpy
from numba import cuda
x = cuda.to_device(numpy.ones(1 << 20))
kept = [x]
kept.append(kept)
print(x.copy_to_host().sum())
"""
    )
    assert float(printed) == 1 << 20


@under_both("rmm")
def test_rmms_buffers_are_of_the_same_memory(allocator: str) -> None:
    install(allocator, rmm=True)
    import rmm
    from rmm.pylibrmm.stream import Stream

    buffer = rmm.DeviceBuffer.to_device(bytes(range(256)) * 4096)
    assert torch.cuda.memory_allocated() == MIB
    assert buffer.copy_to_host().tobytes() == bytes(range(256)) * 4096
    stream = Stream()
    others = [rmm.DeviceBuffer(size=MIB, stream=stream) for _ in range(8)]
    assert torch.cuda.memory_allocated() == 9 * MIB
    del buffer, others
    stream.synchronize()
    assert torch.cuda.memory_allocated() == 0
    with pytest.raises(MemoryError, match="Tried to allocate"):
        rmm.DeviceBuffer(size=1 << 42)


@needs("cupy", "numba")
@in_a_process
def test_all_of_them_in_one_program() -> None:
    install(cupy=True, numba=True)
    plimsoll.install(cupy=True, numba=True)  # a second call has no effect
    import cupy
    from numba import cuda

    tensor = torch.arange(1000, device="cuda", dtype=torch.float32)
    array = cupy.asarray(tensor) + 1
    device_array = cuda.as_cuda_array(array)
    assert float(torch.as_tensor(device_array, device="cuda").sum()) == 500500
    assert cuda.to_device(device_array.copy_to_host()).copy_to_host().sum() == 500500
