"""Runs a 1B model like Llama under vLLM, and prints how many tokens fit into its KV cache.

Run it as `python llama.py eager|graphs|sleep`. The weights are vLLM's dummy weights. The engine
serves 16 requests. With "sleep", it then sleeps and wakes three times at level 1, and once at
level 2.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128_256,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "torch_dtype": "bfloat16",
    "bos_token_id": 128_000,
    "eos_token_id": 128_001,
}


def main() -> None:
    """Runs the engine in the way that the argument names."""
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    from vllm import LLM, SamplingParams

    folder = tempfile.mkdtemp()
    Path(folder, "config.json").write_text(json.dumps(SHAPE))
    engine = LLM(
        model=folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=sys.argv[1] != "graphs",
        enable_sleep_mode=sys.argv[1] == "sleep",
        dtype="bfloat16",
        max_model_len=8192,
        gpu_memory_utilization=0.9,
        enable_prefix_caching=False,
    )
    cache = engine.llm_engine.vllm_config.cache_config
    prompts = [{"prompt_token_ids": [5 + number] * 500} for number in range(16)]
    engine.generate(
        prompts, SamplingParams(max_tokens=8, ignore_eos=True, detokenize=False), use_tqdm=False
    )
    if sys.argv[1] == "sleep":
        for level in (1, 1, 1, 2):
            engine.sleep(level=level)
            engine.wake_up()
    print("KV tokens:", cache.num_gpu_blocks * cache.block_size, flush=True)


if __name__ == "__main__":
    main()
