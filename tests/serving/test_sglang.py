"""Tests that SGLang's cache holds as many tokens on a simulated H100 as on a real one."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

QWEN3_32B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_act": "silu",
    "hidden_size": 5120,
    "intermediate_size": 25600,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 151_643,
    "eos_token_id": 151_645,
}
POSTED_TOKENS, POSTED_WEIGHTS_BYTES = 39_078, 61.07 * (1 << 30)
"""The cache's tokens and the weights' size, from a log of SGLang 0.5.19 that a user posted.

benchmarks/results/serving_sglang.txt names the log. CUDA graphs do not change these figures.
"""

pytestmark = [
    pytest.mark.serving,
    pytest.mark.skipif(find_spec("sglang") is None, reason="needs sglang: make test-serving"),
]


def test_there_is_room_for_as_many_tokens_as_a_log_names(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_32B))
    settings = "--mem-fraction-static 0.9 --context-length 8192 --disable-custom-all-reduce"
    command = [
        *(sys.executable, "-m", "plimsoll", "predict", "--gpu", "H100", "--json"),
        *("sglang", "serve", str(tmp_path), *settings.split(), "--requests", "2"),
        *("--cuda-graph-backend-decode=disabled", "--cuda-graph-backend-prefill=disabled"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    use = json.loads(done.stdout.splitlines()[-1])["serving"]
    assert use["stage"] == "load"
    assert use["kv_tokens"] == pytest.approx(POSTED_TOKENS, rel=0.01)
    assert use["weights_bytes"] == pytest.approx(POSTED_WEIGHTS_BYTES, rel=0.002)


LLAMA_1B = {
    **QWEN3_32B,
    **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048},
    **{"intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32},
    **{"head_dim": 64, "tie_word_embeddings": True, "max_position_embeddings": 8192},
}
RELEASES = """
import sys
import sglang

if __name__ == "__main__":
    engine = sglang.Engine(
        model_path=sys.argv[1], enable_memory_saver=True, enable_weights_cpu_backup=True,
        skip_tokenizer_init=True, cuda_graph_backend_decode="disabled",
        cuda_graph_backend_prefill="disabled",
    )
    for _ in range(2):
        for tag in ("kv_cache", "weights"):
            engine.release_memory_occupation(tags=[tag])
        for tag in ("weights", "kv_cache"):
            engine.resume_memory_occupation(tags=[tag])
    engine.shutdown()
"""


def test_released_memory_is_that_of_weights_and_cache_and_comes_back(tmp_path: Path) -> None:
    model, script = tmp_path / "model", tmp_path / "releases.py"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(LLAMA_1B))
    script.write_text(RELEASES)
    command = [sys.executable, "-m", "plimsoll", "predict", "--gpu", "H100", "--json"]
    done = subprocess.run([*command, script, model], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    use = json.loads(done.stdout.splitlines()[-1])["serving"]
    (asleep,) = use["sleeps"]
    assert (asleep["level"], asleep["times"]) == (None, 2)
    assert asleep["unmapped_bytes"] == pytest.approx(
        use["weights_bytes"] + use["kv_cache_bytes"], rel=0.02
    )
    assert asleep["host_bytes"] == pytest.approx(use["weights_bytes"], rel=0.02)
    assert asleep["waking_bytes"] == pytest.approx(asleep["unmapped_bytes"], rel=0.001)
