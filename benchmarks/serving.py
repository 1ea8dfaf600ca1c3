"""Measures the memory that vLLM takes, step by step, for models with made-up weights.

    python benchmarks/serving.py [NAME ...]      all configurations, or those named
    python benchmarks/serving.py --list          their names
    python benchmarks/serving.py --folder NAME   writes NAME's model folder and prints its path
    python benchmarks/serving.py --one NAME      measures NAME in this process
    python benchmarks/serving.py --compare PREDICTED MEASURED   two files of results, side by side

Each configuration runs in a process of its own and prints one line, RESULT and a JSON object.
All sizes in the object are bytes. A run that runs out of memory prints a line too. There,
`failed_in` names the step, and `error` holds PyTorch's message. The logs go to $OUT, or to the
working directory. With several ranks, the figures are those of rank 0; `ranks` has those of each
rank. Needs vLLM 0.24 and a GPU of 80 GB (two for `-tp2`), but no network and no model files.
Without a GPU it runs under `plimsoll predict benchmarks/serving.py --gpu H100 --gpus 2 -- --one
NAME`.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

LIMIT_SECONDS = int(os.environ.get("MEASURE_TIMEOUT", "300"))
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
SPECIAL = {token: 256 + place for place, token in enumerate(SPECIAL_TOKENS)}
"""Ids in the tiny tokenizer: the 256 bytes come first, then the vision model's tokens."""

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "bfloat16",
}
LLAMA_8B = {
    **LLAMA,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "head_dim": 128,
    "tie_word_embeddings": False,
}
QWEN_VISION_3B = {
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 128000,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "max_window_layers": 70,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": SPECIAL["<|endoftext|>"],
    "eos_token_id": SPECIAL["<|im_end|>"],
}
MODELS: dict[str, dict[str, Any]] = {
    "1b": {
        **LLAMA,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "8b": LLAMA_8B,
    # Llama-2-13B.
    "13b": {
        **LLAMA,
        "hidden_size": 5120,
        "intermediate_size": 13824,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "num_key_value_heads": 40,
        "head_dim": 128,
        "vocab_size": 32000,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
    },
    "8b-awq": {
        **LLAMA_8B,
        "quantization_config": {
            "quant_method": "awq",
            "bits": 4,
            "group_size": 128,
            "version": "gemm",
            "zero_point": True,
        },
    },
    "8b-gptq": {
        **LLAMA_8B,
        "quantization_config": {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": 128,
            "desc_act": False,
            "sym": True,
        },
    },
    # Qwen1.5-MoE-A2.7B: each token runs 4 of 60 experts, and a shared expert.
    "moe": {
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "norm_topk_prob": False,
        "decoder_sparse_step": 1,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "max_position_embeddings": 8192,
        "max_window_layers": 21,
        "sliding_window": 32768,
        "use_sliding_window": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "vocab_size": 151936,
        "bos_token_id": 151643,
        "eos_token_id": 151643,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    },
    # Qwen2.5-VL-3B.
    "vision": {
        **QWEN_VISION_3B,
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "vision_start_token_id": SPECIAL["<|vision_start|>"],
        "vision_end_token_id": SPECIAL["<|vision_end|>"],
        "vision_token_id": SPECIAL["<|vision_pad|>"],
        "image_token_id": SPECIAL["<|image_pad|>"],
        "video_token_id": SPECIAL["<|video_pad|>"],
        "vision_config": {
            "model_type": "qwen2_5_vl",
            "depth": 32,
            "hidden_act": "silu",
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "num_heads": 16,
            "in_chans": 3,
            "in_channels": 3,
            "out_hidden_size": 2048,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "spatial_patch_size": 14,
            "temporal_patch_size": 2,
            "tokens_per_second": 2,
            "window_size": 112,
            "fullatt_block_indexes": [7, 15, 23, 31],
        },
    },
    # Qwen3-Embedding-0.6B.
    "embedding": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "max_window_layers": 28,
        "use_sliding_window": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "vocab_size": 151669,
        "bos_token_id": 151643,
        "eos_token_id": 151643,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    },
    # Gemma 3 1B: five of six layers attend to the last 512 tokens only.
    "gemma": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "num_hidden_layers": 26,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "max_position_embeddings": 32768,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "rope_local_base_freq": 10000,
        "vocab_size": 262144,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "attention_bias": False,
        "torch_dtype": "bfloat16",
    },
}


@dataclass(frozen=True)
class Configuration:
    """A model, the options of vLLM's engine, and the requests that the engine then serves."""

    model: str
    eager: bool = False
    length: int = 8192
    """Tokens in the longest sequence (max_model_len)."""
    utilization: float = 0.9
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `vllm.LLM`."""
    requests: int = 256
    prompt: int = 1000
    """Tokens in each prompt."""
    sampling: dict[str, Any] = field(default_factory=lambda: {"temperature": 0.8, "top_p": 0.9})
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def has_ranks(self) -> bool:
        """Returns whether worker processes hold the model. `serving_rank` reads their memory."""
        return "worker_extension_cls" in self.options


TWO_RANKS = {"tensor_parallel_size": 2, "worker_extension_cls": "serving_rank.RankFigures"}

CONFIGURATIONS: dict[str, Configuration] = {
    "1b-eager": Configuration("1b", eager=True),
    "1b-graphs": Configuration("1b"),
    "8b-eager": Configuration("8b", eager=True),
    "8b-graphs": Configuration("8b"),
    "8b-eager-32k": Configuration("8b", eager=True, length=32768),
    "8b-graphs-32k": Configuration("8b", length=32768),
    "moe-eager": Configuration("moe", eager=True),
    "moe-graphs": Configuration("moe"),
    "8b-fp8": Configuration("8b", options={"quantization": "fp8"}),
    "8b-awq": Configuration("8b-awq"),
    "8b-gptq": Configuration("8b-gptq"),
    "vision": Configuration("vision", requests=64, prompt=500),
    "embedding": Configuration(
        "embedding", options={"runner": "pooling", "convert": "embed"}, prompt=500
    ),
    "gemma": Configuration("gemma"),
    "8b-kv-fp8": Configuration("8b", options={"kv_cache_dtype": "fp8"}),
    "1b-lora": Configuration("1b", options={"enable_lora": True, "max_lora_rank": 64}),
    "8b-short-steps": Configuration(
        "8b", options={"max_num_batched_tokens": 2048, "max_num_seqs": 64}
    ),
    "1b-eager-tp2": Configuration("1b", eager=True, options=TWO_RANKS),
    "1b-graphs-tp2": Configuration("1b", options=TWO_RANKS),
    "8b-eager-tp2": Configuration("8b", eager=True, options=TWO_RANKS),
    "8b-graphs-tp2": Configuration("8b", options=TWO_RANKS),
    # A small vocabulary, and steps of at most 512 tokens, need little memory. So the KV cache gets
    # nearly all of the card. Then the capture of 41 CUDA graphs for each of 51 sizes runs out of
    # memory.
    "oom-capture": Configuration(
        "13b",
        length=4096,
        utilization=0.991,
        options={"max_num_batched_tokens": 512, "max_num_seqs": 256},
    ),
    # When vLLM starts, it runs trial steps to measure how much memory a step needs. A later step
    # of 16,384 tokens with sampling takes more than those trial steps did.
    "oom-load": Configuration("8b", eager=True, utilization=0.986),
}


def write_model(name: str) -> Path:
    """Writes a folder with the model's config.json, and its tokenizer where vLLM needs one."""
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    (folder / "config.json").write_text(json.dumps(MODELS[name], indent=2))
    if name == "vision":
        write_processor(folder)
    return folder


def write_processor(folder: Path) -> None:
    """Writes the files from which vLLM builds the vision model's image processor.

    vLLM measures the encoder with the largest image, and prepares that image with the processor.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in SPECIAL_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    image = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
        "min_pixels": 3136,
        "max_pixels": 12845056,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }
    words = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "processor_class": "Qwen2_5_VLProcessor",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 131072,
    }
    video = {**image, "video_processor_type": "Qwen2VLVideoProcessor"}
    del video["image_processor_type"]
    files = {"preprocessor_config": image, "tokenizer_config": words}
    files["video_preprocessor_config"] = video
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2))


def reading() -> dict[str, int]:
    """Returns the card's free and total bytes, and counters of PyTorch's allocator.

    The counters are allocated and reserved bytes, now and at the peak; retries; and out-of-memory
    errors.
    """
    import torch

    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    counts = torch.cuda.memory_stats()
    wanted = ("allocated_bytes", "reserved_bytes")
    kinds = ("current", "peak")
    read = {
        f"{w.split('_')[0]}_{k}": int(counts.get(f"{w}.all.{k}", 0)) for w in wanted for k in kinds
    }
    retries, failures = counts.get("num_alloc_retries", 0), counts.get("num_ooms", 0)
    return {"free": free, "total": total, **read, "retries": int(retries), "ooms": int(failures)}


def pools() -> dict[str, int]:
    """Returns the bytes reserved in each of PyTorch's private pools, which CUDA graphs use."""
    import torch

    sizes: dict[str, int] = {}
    for segment in torch.cuda.memory_snapshot():
        pool = tuple(segment.get("segment_pool_id", (0, 0)))
        if pool != (0, 0):
            key = ",".join(str(part) for part in pool)
            sizes[key] = sizes.get(key, 0) + int(segment["total_size"])
    return sizes


class Steps:
    """Reads the memory at each step of vLLM's start, and keeps what the watched methods return."""

    def __init__(self) -> None:
        self.readings: dict[str, dict[str, int]] = {}
        self.returned: dict[str, Any] = {}
        self.running = "start"
        self.worker: Any = None

    def watch(self, owner: type, method: str, step: str) -> None:
        """Wraps a method of vLLM, so that the memory is read before and after each call.

        If `step` is "device", the memory is read only after the call.
        """
        if method not in vars(owner):
            return
        real: Callable[..., Any] = vars(owner)[method]

        @functools.wraps(real)
        def watched(this: Any, *arguments: Any, **named: Any) -> Any:
            outer, self.running = self.running, step
            if step == "device":
                self.worker = this
            else:
                self.readings[f"before {step}"] = reading()
            value = real(this, *arguments, **named)
            self.readings[step] = reading()
            if isinstance(value, int):
                self.returned[step] = value
            self.running = outer
            return value

        setattr(owner, method, watched)


def watch_engine(steps: Steps) -> None:
    """Watches vLLM's worker, and the two model runners that the worker can use."""
    worker = importlib.import_module("vllm.v1.worker.gpu_worker").Worker
    steps.watch(worker, "init_device", "device")
    steps.watch(worker, "load_model", "weights")
    steps.watch(worker, "determine_available_memory", "budget")
    steps.watch(worker, "initialize_from_config", "kv")
    steps.watch(worker, "compile_or_warm_up_model", "ready")
    for module in ("vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner"):
        runner = importlib.import_module(module).GPUModelRunner
        steps.watch(runner, "profile_run", "profile")
        steps.watch(runner, "profile_cudagraph_memory", "graph estimate")
        steps.watch(runner, "capture_model", "capture")


def figures(steps: Steps) -> dict[str, Any]:
    """Returns the readings, and the sizes and settings that vLLM itself reports.

    A run that failed early has only some of these values.
    """
    worker = steps.worker
    found: dict[str, Any] = {"readings": steps.readings, "returned": steps.returned}
    if worker is None:
        return found
    names = {
        "requested": "requested_memory",
        "non_torch": "non_torch_memory",
        "peak_activation": "peak_activation_memory",
        "graphs_estimated": "cudagraph_memory_estimate",
        "kv": "available_kv_cache_memory_bytes",
    }
    found.update({key: int(getattr(worker, name, 0) or 0) for key, name in names.items()})
    runner = getattr(worker, "model_runner", None)
    found["weights"] = int(getattr(runner, "model_memory_usage", 0) or 0)
    found["runner"] = type(runner).__module__
    cache, scheduler = worker.cache_config, worker.scheduler_config
    found["num_gpu_blocks"], found["block_size"] = cache.num_gpu_blocks, cache.block_size
    found["kv_tokens"] = (cache.num_gpu_blocks or 0) * (cache.block_size or 0)
    found["max_num_seqs"] = scheduler.max_num_seqs
    found["max_num_batched_tokens"] = scheduler.max_num_batched_tokens
    compilation = worker.vllm_config.compilation_config
    found["capture_sizes"] = compilation.cudagraph_capture_sizes
    found["graph_mode"] = str(compilation.cudagraph_mode)
    if "capture" in steps.returned:
        # The graphs' size is what `capture_model` returns. The difference between the readings
        # before and after that call would be wrong, because the call also empties PyTorch's cache.
        found["graphs"] = steps.returned["capture"]
        found["graph_pools"] = pools()
    return found


def prompts(chosen: Configuration) -> list[dict[str, Any]]:
    """Returns prompts of token ids, each with an image of 1024 by 1024 for the vision model."""
    made: list[dict[str, Any]] = []
    for i in range(chosen.requests):
        # Ids from 300 on, because those below 264 are bytes and special tokens of the tokenizer.
        tokens = [(7 * i + j) % 100000 + 300 for j in range(chosen.prompt)]
        if chosen.model != "vision":
            made.append({"prompt_token_ids": tokens})
            continue
        from PIL import Image

        marks = [SPECIAL[f"<|{mark}|>"] for mark in ("vision_start", "image_pad", "vision_end")]
        picture = Image.new("RGB", (1024, 1024), (i % 256, 2 * i % 256, 3 * i % 256))
        made.append({"prompt_token_ids": marks + tokens, "multi_modal_data": {"image": picture}})
    return made


def run_load(llm: Any, chosen: Configuration) -> None:
    """Sends all requests in one call.

    The answer to each request has 64 tokens. An embedding model answers with one vector instead.
    """
    from vllm import PoolingParams, SamplingParams

    if chosen.options.get("runner") == "pooling":
        llm.encode(prompts(chosen), PoolingParams(), pooling_task="embed", use_tqdm=False)
        return
    sampling = SamplingParams(max_tokens=64, ignore_eos=True, detokenize=False, **chosen.sampling)
    llm.generate(prompts(chosen), sampling, use_tqdm=False)


def start(chosen: Configuration, folder: Path) -> Any:
    """Starts the engine."""
    import vllm

    return vllm.LLM(
        model=str(folder),
        load_format="dummy",
        skip_tokenizer_init=chosen.model != "vision",
        dtype="bfloat16",
        enforce_eager=chosen.eager,
        max_model_len=chosen.length,
        gpu_memory_utilization=chosen.utilization,
        enable_prefix_caching=False,
        kernel_config={"enable_flashinfer_autotune": False},
        **chosen.options,
    )


def load_here(llm: Any, chosen: Configuration, steps: Steps) -> list[dict[str, Any]]:
    """Sends the requests, and reads the card's memory before and after them.

    Returns:
        An empty list, because the model runs in this process and no rank has figures of its own.
    """
    import torch

    steps.readings["init"] = reading()
    torch.cuda.reset_peak_memory_stats()
    steps.running = "load"
    run_load(llm, chosen)
    steps.readings["load"] = reading()
    return []


def load_ranks(llm: Any, chosen: Configuration) -> list[dict[str, Any]]:
    """Sends the requests, and returns the figures that each rank's worker process reads."""
    llm.collective_rpc("read_card", args=("init",))
    run_load(llm, chosen)
    llm.collective_rpc("read_card", args=("load",))
    ranks: list[dict[str, Any]] = llm.collective_rpc("all_figures")
    return ranks


def measure(name: str) -> dict[str, Any]:
    """Starts the engine and runs the load. Returns all readings, even if memory ran out."""
    chosen = CONFIGURATIONS[name]
    quiet = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    for key, value in {**quiet, **chosen.environment}.items():
        os.environ.setdefault(key, value)
    folder = write_model(chosen.model)
    import torch
    import transformers
    import vllm

    steps = Steps()
    result: dict[str, Any] = {"name": name, **asdict(chosen)}
    result["versions"] = {m.__name__: m.__version__ for m in (torch, vllm, transformers)}
    if not chosen.has_ranks:  # with ranks, only the worker processes use a card
        result["card"] = torch.cuda.get_device_name(0)
        steps.readings["start"] = reading()
        watch_engine(steps)
    began = time.monotonic()
    try:
        llm = start(chosen, folder)
        result["seconds_init"] = round(time.monotonic() - began, 1)
        began = time.monotonic()
        ranks = load_ranks(llm, chosen) if chosen.has_ranks else load_here(llm, chosen, steps)
        result["seconds_load"] = round(time.monotonic() - began, 1)
    except Exception as error:
        result["failed_in"], result["error"] = (
            steps.running,
            f"{type(error).__name__}: {error}"[:2000],
        )
        ranks = []
        if not chosen.has_ranks:
            steps.readings["failure"] = reading()
        if "out of memory" not in str(error).lower():
            import traceback

            traceback.print_exc()
    if chosen.has_ranks:
        return {**result, **(ranks[0] if ranks else {}), "ranks": ranks}
    return {**result, **figures(steps)}


def run_each(names: list[str]) -> int:
    """Measures each configuration in a process of its own. Returns 1 if one had no result."""
    missing = 0
    for name in names:
        log = Path(os.environ.get("OUT", ".")) / f"vllm-{name}.log"
        with log.open("w") as output:
            try:
                status: int | str = subprocess.run(
                    [sys.executable, __file__, "--one", name],
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=LIMIT_SECONDS,
                ).returncode
            except subprocess.TimeoutExpired:
                status = f"no result after {LIMIT_SECONDS} s"
        lines = log.read_text(errors="replace").splitlines()
        results = [line for line in lines if line.startswith("RESULT ")]
        tail = {"name": name, "status": status, "tail": lines[-12:]}
        missing += not results
        print(results[-1] if results else "RESULT " + json.dumps(tail), flush=True)
    return int(missing > 0)


def compared(predicted: Path, measured: Path) -> Iterator[str]:
    """Yields the rows of a table: predicted and measured figures, and their difference."""
    rows = [
        {each["name"]: each for each in map(parsed, path.open())} for path in (predicted, measured)
    ]
    for name in rows[0].keys() & rows[1].keys():
        one, other = rows[0][name], rows[1][name]
        if one.get("failed_in") or other.get("failed_in"):
            failed = [str(each.get("failed_in")) for each in (one, other)]
            yield f"{name:14} {'out of memory in':18} {failed[0]:>14} {failed[1]:>14}"
        if not (one.get("ranks") and other.get("ranks")):
            yield from rows_of(f"{name:14}", one, other)
            continue
        for rank, pair in enumerate(zip(one["ranks"], other["ranks"], strict=False)):
            yield from rows_of(f"{name:14} rank {rank}", *pair)


def rows_of(title: str, one: dict[str, Any], other: dict[str, Any]) -> Iterator[str]:
    """Yields the rows of one process: predicted figures, measured figures, and their difference."""
    wanted = ("weights", "peak_activation", "kv_tokens", "graphs")
    pairs = [(key, one.get(key), other.get(key)) for key in wanted]
    # a rank whose start failed has no readings
    readings = [each.get("readings", {}) for each in (one, other)]
    for step in ("capture", "load"):
        if all(step in each for each in readings):
            used = [each[step] for each in readings]
            pairs.append((f"card after {step}", *(r["total"] - r["free"] for r in used)))
    for key, mine, real in pairs:
        if mine and real:
            yield f"{title} {key:18} {mine:>15,} {real:>15,} {mine / real - 1:+9.3%}"


def parsed(line: str) -> dict[str, Any]:
    """Returns the result in a line that has the word RESULT and JSON."""
    found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return found


def main() -> int:
    """Runs the command line, and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="NAME", help="configurations to measure")
    parser.add_argument("--list", action="store_true", help="print the configurations' names")
    parser.add_argument("--folder", metavar="NAME", help="write NAME's model folder")
    parser.add_argument("--one", metavar="NAME", help="measure NAME in this process")
    parser.add_argument(
        "--compare", nargs=2, type=Path, metavar="FILE", help="two files of results"
    )
    asked = parser.parse_args()
    if asked.compare:
        print("\n".join(sorted(compared(*asked.compare))))
        return 0
    named = [*asked.names, *(n for n in (asked.folder, asked.one) if n)]
    if unknown := [n for n in named if n not in CONFIGURATIONS]:
        parser.error(f"no configuration is called {unknown[0]}; --list prints the names")
    if asked.list:
        print("\n".join(CONFIGURATIONS))
    elif asked.folder:
        print(write_model(CONFIGURATIONS[asked.folder].model))
    elif asked.one:
        print("RESULT " + json.dumps(measure(asked.one)), flush=True)
    else:
        return run_each(asked.names or list(CONFIGURATIONS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
