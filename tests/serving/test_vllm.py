"""vLLM on a simulated H100 has room for as many tokens as on a real one."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

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
