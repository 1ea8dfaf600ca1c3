"""Tests `MemoryWatch`, the part that all integrations share, with and without a GPU."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import plimsoll
from plimsoll import InputError
from plimsoll.integrations.memory_watch import HeadroomWarning, MemoryWatch
from plimsoll.recordings.reading import read_recording
from tests.simulated import on_simulated_gpus

torch = pytest.importorskip("torch")


def test_without_a_gpu_it_does_nothing_but_a_recording_is_refused(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    logged: list[dict[str, float]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with MemoryWatch(log=lambda figures, _: logged.append(figures)) as memory:
            memory.log(1)
    assert logged == []
    assert (memory.figures(), memory.leaks) == ({}, [])
    with pytest.raises(InputError, match="nothing to record"), MemoryWatch(record=tmp_path / "run"):
        pass


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"headroom": "much"}, "not a size"),
        ({"headroom": "100%"}, "leaves nothing of the card"),
        ({"record": "run.html"}, r"a recording is a \.plim file"),
    ],
)
def test_bad_options_are_refused_at_once(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        MemoryWatch(**options)  # type: ignore[arg-type]


@on_simulated_gpus()
def test_under_another_recording_a_run_goes_on_without_its_watch() -> None:
    with plimsoll.record("all.plim"):
        with pytest.warns(RuntimeWarning, match="leaks are not watched for: .* is on already"):
            memory = MemoryWatch().__enter__()
        held = torch.zeros(1 << 20, device="cuda")
        assert memory.figures()["gpu0_memory/allocated_gib"] == held.nbytes / 2**30
        memory.end()
        with pytest.raises(InputError, match="is on already"), MemoryWatch(record="own.plim"):
            pass
    assert not Path("own.plim").exists()
    assert read_recording("all.plim").is_whole


@on_simulated_gpus("--gpus", "2")
def test_a_rank_records_into_a_file_of_its_own_and_each_gpu_has_figures() -> None:
    import os

    os.environ["RANK"] = "3"
    with MemoryWatch(record="run.plim", leaks=False) as memory:
        held = [torch.zeros(1 << 20, device=f"cuda:{index}") for index in (0, 1)]
        names = {name.partition("/")[0] for name in memory.figures()}
    assert memory.path == Path("run.rank3.plim")
    assert names == {"gpu0_memory", "gpu1_memory"}
    assert [trace.device for trace in read_recording(memory.path).devices] == [0, 1]
    assert len(held) == 2


@on_simulated_gpus()
def test_the_headroom_is_that_of_the_peak() -> None:
    """Memory that was in use at the peak is not headroom, although it is free now.

    `empty_cache` returns the 60 GiB to the driver, so the free memory includes them. The headroom
    must not include them.
    """
    large = torch.zeros(60 << 28, device="cuda")  # 60 GiB of the card's 80 GiB
    del large
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    memory = MemoryWatch(headroom="30GiB")
    with pytest.warns(HeadroomWarning, match=r"GPU 0 has 1\d\.\d\d GiB to spare at the peak"):
        figures = memory.figures()
    assert figures["gpu0_memory/headroom_gib"] == free / 2**30 - 60
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory.figures()
        MemoryWatch(headroom=0).figures()
