"""Tests PyTorch's interface for pluggable allocators, called from C++ built with GCC."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from plimsoll import SimulatedGpu, _core
from plimsoll.base.units import GiB, MiB

SOURCE = Path(__file__).parents[1] / "programs" / "pytorch_caller.cpp"
POOL, STREAM = 7, 5


class Caller:
    """Calls plimsoll's pluggable allocator functions from a C++ library, as PyTorch calls them."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._functions = _core.pluggable_functions()
        self._text = ctypes.create_string_buffer(1000)

    def allocate(self, size: int) -> int:
        address = ctypes.c_size_t()
        self._call("caller_allocate", "alloc", ctypes.c_size_t(size), ctypes.byref(address))
        return address.value

    def allocate_on(self, stream: int, size: int) -> int:
        kind = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
        return int(kind(self._functions["alloc"])(size, 0, stream))

    def begin(self) -> None:
        pool, stream = ctypes.c_uint64(POOL), ctypes.c_size_t(STREAM)
        self._call("caller_begin", "begin_allocate_to_pool", pool, stream)

    def end(self) -> None:
        self._call("caller_end", "end_allocate_to_pool", ctypes.c_uint64(POOL))

    @property
    def holders(self) -> int:
        """Returns the number of references to a test object.

        The C++ library holds one reference, and each live copy of a filter holds another. A
        filter is the function that chooses the streams whose requests a pool serves.
        """
        return int(self._library.caller_holders())

    @property
    def asked(self) -> int:
        """Returns how often the filter was called."""
        return int(self._library.caller_asked())

    def _call(self, name: str, function: str, *arguments: object) -> None:
        status = getattr(self._library, name)(
            ctypes.c_void_p(self._functions[function]), *arguments, self._text, 1000
        )
        if status == 1:
            raise RuntimeError(self._text.value.decode())
        assert status == 0, "an exception that PyTorch's C++ does not know"


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Caller:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ compiles as PyTorch was compiled")
    library = tmp_path_factory.mktemp("caller") / "caller.so"
    subprocess.run(
        [compiler, "-std=c++17", "-shared", "-fPIC", "-O1", "-o", library, SOURCE], check=True
    )
    return Caller(library)


@pytest.fixture
def engine() -> _core.Engine:
    """Returns an engine on a card of 1 GiB."""
    gpu = SimulatedGpu(GiB)
    return _core.Engine.simulated(gpu._driver, "native", "", "2.11", 0, False)


@pytest.mark.usefixtures("engine")
def test_a_request_that_fails_throws_what_pytorch_catches(caller: Caller) -> None:
    assert caller.allocate(MiB) != 0
    for _ in range(3):
        with pytest.raises(RuntimeError, match=r"^CUDA out of memory\. Tried to allocate 2"):
            caller.allocate(2 * GiB)
    assert caller.allocate(MiB) != 0, "a failed request has changed nothing"


@pytest.mark.usefixtures("engine")
def test_a_pool_keeps_its_filter_asks_it_and_lets_it_go(caller: Caller) -> None:
    before = caller.holders
    caller.begin()
    assert caller.holders == before + 1, "a copy of PyTorch's function is kept"
    asked = caller.asked
    inside, outside = caller.allocate_on(STREAM, MiB), caller.allocate_on(STREAM + 1, MiB)
    assert caller.asked > asked
    assert abs(inside - outside) >= 2 * MiB, "the pool has segments of its own"
    caller.end()
    assert caller.holders == before


@pytest.mark.usefixtures("engine")
def test_a_pool_that_ends_twice_is_told_in_pytorchs_kind_of_exception(caller: Caller) -> None:
    with pytest.raises(RuntimeError, match="pool"):
        caller.end()
