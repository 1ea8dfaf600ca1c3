"""Tests that vLLM's cache holds as many tokens on a simulated H100 as on a real one."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from plimsoll.prediction.predict import predict
from tests.simulated import output_of

LLAMA = Path(__file__).with_name("llama.py")
MEASURED_TOKENS = 138_749 * 16
"""Measured with vLLM 0.24.0, eager: max_model_len 8192, utilization 0.9."""

pytestmark = [
    pytest.mark.serving,
    pytest.mark.skipif(find_spec("vllm") is None, reason="needs vllm: make test-serving"),
]


@pytest.mark.parametrize("how", ["eager", "graphs"])
def test_there_is_room_for_as_many_tokens_as_on_a_card(how: str) -> None:
    out = output_of(LLAMA, arguments=[how], gpu="H100", environment={})
    (tokens,) = re.findall(r"KV tokens: (\d+)", out)
    assert int(tokens) == pytest.approx(MEASURED_TOKENS, rel=0.01)


def test_sleep_frees_what_waking_takes_again() -> None:
    found = predict(LLAMA, ["sleep"], gpu="H100")
    assert found.fits
    use = found.serving
    assert use is not None
    assert use.weights_bytes is not None
    assert use.kv_cache_bytes is not None
    assert [(each.level, each.times) for each in use.sleeps] == [(1, 3), (2, 1)]
    for each in use.sleeps:
        assert each.unmapped_bytes == each.waking_bytes
        assert each.unmapped_bytes >= use.weights_bytes + use.kv_cache_bytes
        assert each.left_bytes < 1 << 30
    assert use.sleeps[0].host_bytes >= use.weights_bytes
    assert use.sleeps[1].host_bytes == 0
