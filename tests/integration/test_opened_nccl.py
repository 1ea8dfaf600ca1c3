"""Tests NCCL opened by `ctypes`: ranks exchange data, and NCCL takes memory of each rank's card."""

from __future__ import annotations

import pytest

from plimsoll.prediction.predict import predict
from tests.simulated import PROGRAMS, on_simulated_gpus

torch = pytest.importorskip("torch")

RANKS = PROGRAMS / "jobs" / "opened_nccl.py"


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.long)])
def test_ranks_that_an_engine_starts_meet_by_nccl(ranks: int) -> None:
    """The program itself checks the values. Each rank takes memory on its own card only."""
    found = predict(RANKS, [str(ranks)], gpu="H100", gpus=ranks)
    assert found.fits
    assert [use.device for use in found.ranks] == list(range(ranks))
    assert all((use.nccl_bytes or 0) > 100 << 20 for use in found.ranks)
    assert found.shared_cards == []


@on_simulated_gpus("--gpus", "2", gpu="H100")
def test_an_external_stream_is_one_of_the_current_device() -> None:
    torch.cuda.set_device(1)
    stream = torch.cuda.Stream()
    same = torch.cuda.ExternalStream(stream.cuda_stream)
    assert same.device == stream.device
    assert same.cuda_stream == stream.cuda_stream


@on_simulated_gpus(gpu="H100")
def test_what_is_not_simulated_of_nccl_says_so() -> None:
    import ctypes

    library = ctypes.CDLL("libnccl.so.2")
    version = ctypes.c_int()
    assert library.ncclGetVersion(ctypes.byref(version)) == 0
    assert version.value > 22_000
    with pytest.raises(NotImplementedError, match="ncclCommWindowRegister"):
        library.ncclCommWindowRegister(None, None, 0, None, 0)
    with pytest.raises(AttributeError):
        library.unknown  # noqa: B018
