"""Checks on a GPU that a recipe's predicted largest batch is really the largest.

    python benchmarks/recipes.py predict build/recipes [NAME…]
    python benchmarks/recipes.py measure build/recipes [NAME…]
    python benchmarks/recipes.py table build/recipes

A recipe is a ready-made script for a model. `predict` searches, without a GPU, for the exact size
of the largest batch that fits a memory limit. `measure` needs a GPU, PyTorch and the recipe's
libraries, but no weights. It limits the memory, and runs the recipe twice, in separate processes:
with the predicted batch size, and with that size plus one. The first run should finish, and the
second should run out of memory. `table` shows for how many recipes both are true. NAME selects a
case. `predict` and `measure` should run under the same PyTorch.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

GPU = os.environ.get("GPU", "H200")
GIB = 1 << 30
MOST_SECONDS = 600

_LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}
_QWEN_600M = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
}
_BERT = {"architectures": ["BertForMaskedLM"], "model_type": "bert"}
_VIT_LARGE = {
    "architectures": ["ViTForImageClassification"],
    "model_type": "vit",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
}
_DIT_XL = {
    "_class_name": "DiTTransformer2DModel",
    "num_attention_heads": 16,
    "attention_head_dim": 72,
    "num_layers": 28,
    "sample_size": 32,
    "in_channels": 4,
    "out_channels": 8,
}


@dataclass(frozen=True)
class Case:
    """A recipe for a model, with a memory limit."""

    configuration: dict[str, Any]
    recipe: str
    limit_gib: int
    seq_len: int | None = None
    arguments: tuple[str, ...] = ()


CASES = {
    "llama_8b-lora": Case(_LLAMA_8B, "lora", 40, 2048, ("--gradient-checkpointing",)),
    "llama_8b-qlora": Case(_LLAMA_8B, "qlora", 24, 2048, ("--gradient-checkpointing",)),
    "llama_8b-generate": Case(_LLAMA_8B, "generate", 40, 2048),
    "qwen_600m-sft": Case(_QWEN_600M, "sft", 40, 2048),
    "qwen_600m-pretrain": Case(_QWEN_600M, "pretrain", 40, 2048),
    "bert_base-pretrain": Case(_BERT, "pretrain", 24, 512),
    "vit_large-sft": Case(_VIT_LARGE, "sft", 40),
    "dit_xl-pretrain": Case(_DIT_XL, "pretrain", 40),
}


def predict(folder: Path, names: Sequence[str]) -> None:
    """Searches for each case's largest batch. Writes the result and the script for `measure`."""
    import plimsoll
    from plimsoll.prediction.recipes.recipe import recipe

    for name in names or CASES:
        case = CASES[name]
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text(json.dumps(case.configuration))
        made = recipe(case.recipe, str(place), seq_len=case.seq_len, arguments=case.arguments)
        found = plimsoll.fit(
            made.script, "--batch-size", made.arguments, gpu=GPU, exact=True,
            dedicated=case.limit_gib * GIB,
        )  # fmt: skip
        made.saved(place / "recipe.py", force=True)
        predicted = {
            # The first two arguments, `--model` and its path, are left out. `measure` adds them.
            "arguments": made.arguments[2:],
            "largest": found.largest,
            "limit": case.limit_gib * GIB,
            "gpu": found.gpu,
            "stopped": found.stopped,
            "seconds": round(found.seconds, 1),
        }
        (place / "predicted.json").write_text(json.dumps(predicted, indent=1))
        print(f"{name}: {str(found).splitlines()[0]}", flush=True)


def measure(folder: Path, names: Sequence[str]) -> None:
    """Runs each case with its predicted largest batch size, and with that size plus one."""
    for place in _places(folder, names):
        predicted = json.loads((place / "predicted.json").read_text())
        if predicted["largest"] is None:
            print(f"{place.name}: no batch fits")
            continue
        found = {}
        for batch in (predicted["largest"], predicted["largest"] + 1):
            found[batch] = _measured(place, predicted, batch)
            print(f"{place.name}, batch {batch}: {found[batch]['outcome']}", flush=True)
        (place / "measured.json").write_text(json.dumps(found, indent=1))


def _measured(place: Path, predicted: dict[str, Any], batch: int) -> dict[str, Any]:
    script = [str(place / "recipe.py"), "--model", str(place), *predicted["arguments"]]
    command = [sys.executable, __file__, "run", str(predicted["limit"])]
    command += [*script, "--batch-size", str(batch)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=MOST_SECONDS
        )
    except subprocess.TimeoutExpired:
        return {"outcome": f"took more than {MOST_SECONDS} s"}
    last = done.stdout.splitlines()[-1:]
    if done.returncode != 0 or not last:
        return {"outcome": f"failed: {done.stderr[-600:]}"}
    found: dict[str, Any] = json.loads(last[0])
    return found


def run(limit: int, command: Sequence[str]) -> None:
    """Runs a script under a memory limit in this process, and prints the outcome."""
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(limit / total)
    sys.argv, outcome = list(command), "finished"
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        outcome = "out of memory"
    stats = torch.cuda.memory_stats()
    figures = {
        "outcome": outcome,
        "allocated": stats["allocated_bytes.all.peak"],
        "reserved": stats["reserved_bytes.all.peak"],
        "retries": stats["num_alloc_retries"],
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }
    print(f"\n{json.dumps(figures)}")


def table(folder: Path, names: Sequence[str]) -> None:
    """Prints the results."""
    print(f"{'recipe':20} {'limit':>8} {'largest':>8}  {'it':14} {'reserved':>10}  the next one")
    right = count = 0
    machines = set()
    for place in _places(folder, names):
        predicted = json.loads((place / "predicted.json").read_text())
        measured = place / "measured.json"
        if not measured.exists():
            continue
        it, after = json.loads(measured.read_text()).values()
        machines.add(f"{it.get('gpu')}, PyTorch {it.get('torch')}")
        reserved = f"{it['reserved'] / GIB:.2f} GiB" if "reserved" in it else "-"
        print(
            f"{place.name:20} {predicted['limit'] / GIB:4.0f} GiB {predicted['largest']:8}  "
            f"{it['outcome'][:14]:14} {reserved:>10}  {after['outcome'][:60]}"
        )
        count += 1
        right += it["outcome"] == "finished" and after["outcome"] == "out of memory"
    print(f"{right} of {count}: the largest finishes, and the next one runs out of memory")
    print(f"measured on {'; '.join(sorted(machines))}")


def _places(folder: Path, names: Sequence[str]) -> list[Path]:
    found = sorted(path.parent for path in folder.glob("*/predicted.json"))
    return [place for place in found if not names or place.name in names]


if __name__ == "__main__":
    verb, place, *rest = sys.argv[1:]
    if verb == "run":
        run(int(place), rest)
    else:
        {"predict": predict, "measure": measure, "table": table}[verb](Path(place), rest)
