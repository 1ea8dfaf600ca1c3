"""Measures how much of the card's memory vLLM frees when it sleeps and takes again when it wakes.

    python benchmarks/sleeping.py [eager]                       prints RESULT and a JSON object
    python benchmarks/sleeping.py --compare PREDICTED MEASURED  files of results, side by side

A model with one billion random parameters serves, sleeps and wakes three times. Then it sleeps
without a copy of its weights, and wakes in two steps. The JSON object has the card's bytes in use
after each step, and whether the weights and the answers stayed the same. Needs vLLM 0.24 and a GPU
that no other process uses. `plimsoll run --allocator elastic benchmarks/sleeping.py` measures under
plimsoll's allocator. Without a GPU it runs under `plimsoll predict`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from serving import write_model

ROUNDS = 3


def weights_hash(model: Any) -> str:
    """Returns a hash over the values of all parameters."""
    import torch

    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().cpu().view(torch.uint8).numpy())
    return found.hexdigest()


class Card:
    """The card's bytes in use after each step."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, int]] = []

    def read(self, step: str) -> None:
        """Waits until the card's work is done, and notes the bytes in use."""
        import torch

        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        self.taken.append((step, total - free))


def measure(eager: bool) -> dict[str, Any]:
    """Serves, sleeps and wakes. Returns the JSON object."""
    settings = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    import torch
    from vllm import LLM, SamplingParams

    card = Card()
    llm = LLM(
        model=str(write_model("1b")),
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=eager,
        dtype="bfloat16",
        max_model_len=8192,
        gpu_memory_utilization=0.9,
        enable_prefix_caching=False,
        enable_sleep_mode=True,
        kernel_config={"enable_flashinfer_autotune": False},
    )
    sampling = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": [300 + place + n for n in range(200)]} for place in range(4)]

    def answers() -> list[list[int]]:
        given = llm.generate(prompts, sampling, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in given]

    def hashed() -> list[str]:
        found: list[str] = llm.apply_model(weights_hash)
        return found

    first_answers, first_hash = answers(), hashed()
    card.read("awake")
    equal = []
    for _ in range(ROUNDS):
        llm.sleep(level=1)
        card.read("asleep")
        llm.wake_up()
        card.read("awake")
        equal.append((hashed() == first_hash, answers() == first_answers))
        card.read("served")
    llm.sleep(level=2)
    card.read("asleep without a copy")
    llm.wake_up(tags=["weights"])
    card.read("weights awake")
    llm.wake_up(tags=["kv_cache"])
    card.read("awake")
    return {
        "eager": eager,
        "card": torch.cuda.get_device_name(0),
        "allocator": os.environ.get("PLIMSOLL_ALLOCATOR")
        or torch.cuda.memory.get_allocator_backend(),
        "taken": card.taken,
        "weights_equal": all(one for one, _ in equal),
        "answers_equal": all(one for _, one in equal),
    }


def read_results(path: Path) -> list[dict[str, Any]]:
    """Returns the results that a file holds, one a line."""
    lines = path.read_text().splitlines()
    return [json.loads(line[7:]) for line in lines if line.startswith("RESULT ")]


def compare(predicted: Path, measured: Path) -> None:
    """Prints a row for each step: the predicted and the measured bytes in use after it.

    Each row but the first also has the change since the step before, predicted and measured.
    """
    foreseen = {each["eager"]: each["taken"] for each in read_results(predicted)}
    for result in read_results(measured):
        print(
            f"allocator {result['allocator']}, eager {result['eager']},"
            f" weights equal {result['weights_equal']}, answers equal {result['answers_equal']}"
        )
        before = None
        for (step, mine), (_, real) in zip(foreseen[result["eager"]], result["taken"], strict=True):
            row = f"{step:22} {mine:>16,} {real:>16,} {mine - real:>+14,}"
            if before is not None:
                change = (mine - before[0], real - before[1])
                off = f"{change[0] / change[1] - 1:+9.3%}" if abs(change[1]) > 1 << 26 else ""
                row += f" {change[0]:>+17,} {change[1]:>+17,} {off}"
            print(row)
            before = (mine, real)


def main() -> int:
    """Reads the arguments and does what they ask."""
    if sys.argv[1:2] == ["--compare"]:
        compare(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        print("RESULT " + json.dumps(measure("eager" in sys.argv[1:])), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
