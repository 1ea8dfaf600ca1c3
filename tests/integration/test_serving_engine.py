"""Tests predictions of a serving engine that sizes its cache by the card's free memory."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from plimsoll.base.units import GiB, MiB
from plimsoll.engine.gpus.profiles import gpu_profile
from tests.commands import run_plimsoll
from tests.simulated import PROGRAMS

pytest.importorskip("torch")
pytest.importorskip("pynvml")

ENGINE = PROGRAMS / "serving_engine.py"
CARD = gpu_profile("L4")
STREAMS_BYTES = CARD.context_parts["streams"]
"""Bytes that the CUDA context takes for streams.

The context takes them only after the engine has sized its cache.
"""
PAGE_BYTES = 4 * 2 * 16 * 2 * 64 * 2
"""Bytes of a page of the cache.

The factors are layers, keys and values, tokens, key heads, numbers per head, and bytes per number.
"""
WEIGHTS_BYTES = 2 * (32_000 * 512 + 4 * (512 * 768 + 512 * 512 + 2 * 512 * 2048))


def predicted(kind: str, utilization: float) -> tuple[dict[str, Any], dict[str, int]]:
    """Returns the prediction, and the figures that the engine printed, if any."""
    options = ("--gpu", CARD.name, "--json", "--", kind, utilization)
    done = run_plimsoll("predict", ENGINE, *options)
    printed = re.search("figures: (.*)", done.stderr + done.stdout)
    found = done.stdout.splitlines()
    return json.loads(found[-1]), json.loads(printed[1]) if printed else {}


def check_figures(figures: dict[str, int]) -> None:
    """Checks the engine's figures.

    The cache gets the engine's share of the card, minus the peak of the profiling pass, and minus
    the memory outside PyTorch.
    """
    assert figures["total"] == CARD.total_bytes
    assert 0 <= figures["weights"] - WEIGHTS_BYTES < MiB  # blocks are rounded up
    assert figures["outside"] == CARD.context_with(["kernels", "blas", "stacks"])
    room = int(0.8 * CARD.total_bytes) - figures["peak"] - figures["outside"]
    assert figures["cache"] == room // PAGE_BYTES * PAGE_BYTES
    # The model's width is 512. A profiling pass of 2048 tokens holds at least two tensors with four
    # times this width.
    assert figures["peak"] > WEIGHTS_BYTES + 2 * 2048 * 4 * 512 * 2


def test_a_cache_takes_the_share_of_the_card_that_is_left() -> None:
    found, figures = predicted("same", 0.8)
    assert found["fits"] is True
    check_figures(figures)
    held = figures["weights"] + figures["cache"]
    assert held < found["peak_allocated_bytes"] < held + 64 * MiB
    asked = 0.8 * CARD.total_bytes
    assert asked - 64 * MiB < found["device_used_bytes"] < asked + figures["graphs"] + STREAMS_BYTES
    assert "reads how much memory its card has" in found["no_other_cards"]
    assert found["processes"] == []


@pytest.mark.parametrize(
    "kind", ["spawn", *(pytest.param(each, marks=pytest.mark.long) for each in ("TERM", "KILL"))]
)
def test_an_engine_in_a_process_of_its_own_takes_the_same(kind: str) -> None:
    """Runs a script with the engine in a new process. If `kind` is a signal, it ends the engine.

    The script's own process only calls NVML, so plimsoll does not count it as a user of the card.
    """
    found, figures = predicted(kind, 0.8)
    assert found["fits"] is True
    check_figures(figures)
    (use,) = found["processes"]
    assert use["peak_reserved_bytes"] == (None if kind != "spawn" else found["peak_reserved_bytes"])
    asked = 0.8 * CARD.total_bytes
    assert asked - 64 * MiB < found["device_used_bytes"] < asked + figures["graphs"] + STREAMS_BYTES
    assert found["headroom_bytes"] == CARD.total_bytes - found["device_used_bytes"]
    assert found["shared_cards"] == []


@pytest.mark.parametrize("kind", ["same", pytest.param("spawn", marks=pytest.mark.long)])
def test_an_engine_that_asks_for_more_than_the_card_runs_out_of_memory(kind: str) -> None:
    found, figures = predicted(kind, 1.2)
    assert found["fits"] is False
    assert not figures
    # plimsoll runs the script on a card with unlimited memory, but tells the script the real size.
    asked = 1.2 * CARD.total_bytes
    assert asked - GiB < found["peak_allocated_bytes"] < asked + GiB
