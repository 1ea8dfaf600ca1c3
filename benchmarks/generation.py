"""Measures the memory of transformers' `generate` with a static or a paged cache.

    python benchmarks/generation.py KIND         measures on a GPU
    plimsoll predict benchmarks/generation.py --gpu H200 -- KIND
    python benchmarks/generation.py --compare MEASURED PREDICTED     compares two printed outputs

Prints one line: the word RESULT, then a JSON object. The object has the peaks of allocated and
reserved memory, and the card's memory in use at the end, in bytes. Needs transformers 5.17, no
network and no model files.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

KINDS = ("static", "static-compiled", "paged", "paged-blocks", "paged-graphs")
SIZES = ("allocated", "reserved", "used")
REQUESTS = 24
NEW_TOKENS = 40


def make_model() -> Any:
    """Returns a Llama of 0.5 billion parameters, in bfloat16."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=8,
        max_position_embeddings=4096,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()


def generate_static(model: Any, compiled: bool) -> None:
    """Generates tokens twice with a cache of fixed size."""
    import torch

    prompt = torch.randint(1, 32000, (16, 512), device="cuda")
    for _ in range(2):
        model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=24,
            do_sample=False,
            cache_implementation="static",
            disable_compile=not compiled,
        )


def generate_paged(model: Any, **options: Any) -> None:
    """Generates tokens by continuous batching, whose cache consists of blocks."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    done = model.generate_batch(
        [list(range(5, 45 + 60 * i)) for i in range(REQUESTS)],
        generation_config=GenerationConfig(
            max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=ContinuousBatchingConfig(max_memory_percent=0.8, **options),
    )
    assert [len(each.generated_tokens) for each in done.values()] == [NEW_TOKENS] * REQUESTS


def measure(kind: str) -> None:
    """Generates tokens with one kind of cache, and prints the memory that this took."""
    import torch

    torch.manual_seed(0)
    model = make_model()
    if kind.startswith("static"):
        generate_static(model, compiled=kind == "static-compiled")
    else:
        blocks = {} if kind == "paged" else {"num_blocks": 512, "max_batch_tokens": 1024}
        with_graphs = kind == "paged-graphs"
        generate_paged(model, use_cuda_graph=with_graphs, use_async_batching=with_graphs, **blocks)
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    found = {
        "kind": kind,
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "used": total - free,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }
    print("RESULT", json.dumps(found))


def read(path: str) -> dict[str, dict[str, Any]]:
    """Returns the results in a file, by kind of cache.

    If the file has several lines for a kind, the last line is used.
    """
    lines = Path(path).read_text().splitlines()
    rows = [json.loads(line.removeprefix("RESULT ")) for line in lines if line.strip()]
    return {row["kind"]: row for row in rows}


def compare(measured_path: str, predicted_path: str) -> None:
    """Prints measured sizes, and how far the predicted ones differ."""
    measured, predicted = read(measured_path), read(predicted_path)
    print(f"{'':16}", *(f"{size + ', measured':>24}{'predicted':>10}" for size in SIZES))
    for kind in [kind for kind in KINDS if kind in measured and kind in predicted]:
        pairs = [(measured[kind][size], predicted[kind][size]) for size in SIZES]
        cells = (
            f"{real / 2**20:>16,.0f} MiB {100 * (said / real - 1):>+12.3f} %"
            for real, said in pairs
        )
        print(f"{kind:16}", *cells)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--compare"]:
        compare(sys.argv[2], sys.argv[3])
    else:
        measure(sys.argv[1])
