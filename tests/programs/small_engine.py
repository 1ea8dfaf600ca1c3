"""Stand-ins for the parts of vLLM that plimsoll calls and watches, with simple sizes.

`tests/small_engine.py` makes a package `vllm` from this file. While the engine serves, each request
takes more memory than in the profiling step.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import torch

GiB, MiB, KiB = 1 << 30, 1 << 20, 1 << 10
WEIGHTS_BYTES, TOKEN_BYTES = 8 * GiB, 128 * KiB
"""Bytes of the model's weights, and of one token in the KV cache. 8-bit types halve both."""
ROW_BYTES, LOAD_BYTES = 2 * MiB, MiB
"""Bytes of a request in the profiling step. In serving, a request takes LOAD_BYTES more."""
LONGEST, HEADS = 131_072, 4
"""Tokens of the longest request that the model allows; number of the model's attention heads."""
_KEPT: list[torch.Tensor] = []


def take(size: int) -> torch.Tensor:
    """Returns a tensor of `size` bytes on the card."""
    return torch.empty(size, dtype=torch.uint8, device="cuda")


class UsageContext(Enum):
    """The program that uses the engine."""

    OPENAI_API_SERVER = 1


FlexibleArgumentParser = argparse.ArgumentParser


def make_arg_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Returns the parser with the options of `vllm serve`."""
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-num-batched-tokens", type=int, default=8192)
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.9)
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
    parser.add_argument("--kv-cache-dtype", choices=["auto", "fp8"], default="auto")
    parser.add_argument("--quantization", choices=["fp8"])
    return parser


def get_open_port() -> int:
    """Stands in for vLLM's search for a free port. Only a run of several engines needs a port."""
    raise NotImplementedError


@dataclass
class VllmConfig:
    """The settings of an engine."""

    asked: Any
    model_config: Any
    scheduler_config: Any
    cache_config: Any


class EngineArgs:
    """The settings as the user asked for them."""

    def __init__(self, asked: Any) -> None:
        self.asked = asked
        self.load_format = "auto"
        self.data_parallel_size = 1

    @classmethod
    def from_cli_args(cls, options: Any) -> EngineArgs:
        """Returns the settings that the command line gives."""
        return cls(options)

    def create_load_config(self) -> Any:
        """Returns the settings for loading the weights."""
        return self.load_format

    def create_model_config(self) -> Any:
        """Returns the model's settings.

        Raises:
            ValueError: If the model or the card does not allow them.
        """
        length = self.asked.max_model_len or LONGEST
        if length > LONGEST:
            raise ValueError(f"max_model_len ({length}) is greater than the derived {LONGEST}")
        if torch.cuda.get_device_capability()[0] < 8:
            raise ValueError("the model needs a card with bfloat16")
        return SimpleNamespace(
            max_model_len=length, get_vocab_size=lambda: 1000, runner_type="generate",
            is_multimodal_model=False, is_moe=False,
        )  # fmt: skip

    def create_engine_config(self, usage_context: UsageContext) -> VllmConfig:
        """Returns all settings of an engine.

        Raises:
            ValueError: If the settings contradict each other, or the machine has too few cards.
        """
        del usage_context
        asked = self.asked
        if asked.max_num_batched_tokens < asked.max_num_seqs:
            raise ValueError("max_num_batched_tokens has to be at least max_num_seqs")
        if HEADS % asked.tensor_parallel_size:
            raise ValueError(f"{HEADS} heads must be divisible by tensor parallel size")
        if torch.cuda.device_count() < asked.tensor_parallel_size:
            raise ValueError("the machine has too few cards")
        return VllmConfig(
            asked,
            self.create_model_config(),
            SimpleNamespace(
                max_num_seqs=asked.max_num_seqs,
                max_num_batched_tokens=asked.max_num_batched_tokens,
            ),
            SimpleNamespace(gpu_memory_utilization=asked.gpu_memory_utilization),
        )


def request_memory(snapshot: Any, cache: Any) -> int:
    """Returns how many bytes of the card the engine may take.

    Raises:
        ValueError: If the card has less free memory than this.
    """
    asked = int(snapshot.total_memory * cache.gpu_memory_utilization)
    if snapshot.free_memory < asked:
        raise ValueError("Free memory on device is less than desired GPU memory utilization")
    return asked


def _check_enough_kv_cache_memory(available: int, needed: Any, longest: int, estimate: Any) -> None:
    if available <= 0:
        raise ValueError("No available memory for the cache blocks.")
    if needed() > available:
        raise ValueError(f"To serve one request of {longest}; {estimate(available)} would do")


def get_kv_cache_capacity(config: VllmConfig, sizes: Any) -> tuple[int, float]:
    """Returns the tokens that the cache holds, and how many of the longest requests fit into it."""
    return sizes.tokens, sizes.tokens / config.model_config.max_model_len


class Worker:
    """The worker, which uses the card. vLLM calls its methods in the order of this file."""

    def __init__(self, config: VllmConfig) -> None:
        self.vllm_config = config
        self.model_runner = SimpleNamespace(model_memory_usage=0)
        self.peak_activation_memory = self.non_torch_memory = 0
        self.share_bytes = 0
        asked = config.asked
        self.token_bytes = TOKEN_BYTES // (2 if asked.kv_cache_dtype == "fp8" else 1)
        self.token_bytes //= asked.tensor_parallel_size

    def init_device(self) -> None:
        """Claims a share of the card."""
        free, total = torch.cuda.mem_get_info()
        snapshot = SimpleNamespace(free_memory=free, total_memory=total)
        from vllm.v1.worker import utils

        self.share_bytes = utils.request_memory(snapshot, self.vllm_config.cache_config)

    def load_model(self) -> None:
        """Loads the weights."""
        asked = self.vllm_config.asked
        size = WEIGHTS_BYTES // (2 if asked.quantization else 1) // asked.tensor_parallel_size
        _KEPT.append(take(size))
        self.model_runner.model_memory_usage = size

    def determine_available_memory(self) -> int:
        """Runs the largest step. Returns the bytes that remain for the cache."""
        self.peak_activation_memory = self.vllm_config.asked.max_num_seqs * ROW_BYTES
        take(self.peak_activation_memory)
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        taken = total - free
        self.non_torch_memory = taken - torch.cuda.memory_reserved()
        left: int = self.share_bytes - taken - self.peak_activation_memory
        return left

    def initialize_from_config(self, sizes: Any) -> None:
        """Allocates the KV cache."""
        _KEPT.extend(take(tensor.size) for tensor in sizes.kv_cache_tensors)

    def compile_or_warm_up_model(self) -> None:
        """Runs a small step."""
        take(ROW_BYTES)

    def execute_model(self) -> None:
        """Runs a step under load."""
        asked = self.vllm_config.asked
        take(asked.max_num_seqs * (ROW_BYTES + LOAD_BYTES))


@dataclass
class _Sizes:
    tokens: int
    kv_cache_tensors: list[Any]
    kv_cache_groups: list[str] = field(default_factory=lambda: ["full attention"])


class LLMEngine:
    """An engine with one worker."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.left = 0

    @classmethod
    def from_vllm_config(cls, config: VllmConfig, usage_context: UsageContext) -> LLMEngine:
        """Starts an engine.

        Raises:
            ValueError: If one request of the greatest length does not fit into the cache.
        """
        del usage_context
        from vllm.v1.core import kv_cache_utils
        from vllm.v1.worker import gpu_worker

        worker = gpu_worker.Worker(config)
        worker.init_device()
        worker.load_model()
        available = worker.determine_available_memory()
        longest, token = config.model_config.max_model_len, worker.token_bytes
        kv_cache_utils._check_enough_kv_cache_memory(
            available, lambda: longest * token, longest, lambda room: room // token
        )
        tokens = available // token
        worker.initialize_from_config(_Sizes(tokens, [SimpleNamespace(size=tokens * token)]))
        worker.compile_or_warm_up_model()
        return cls(worker)

    def get_supported_tasks(self) -> list[str]:
        """Returns the tasks of the model."""
        return ["generate"]

    def add_request(self, *request: Any) -> None:
        """Queues a request; all queued requests are done after a few steps."""
        del request
        self.left = 2

    def abort_request(self, names: list[str]) -> None:
        """Drops the requests."""
        del names
        self.left = 0

    def has_unfinished_requests(self) -> bool:
        """Returns whether the engine has steps left to run."""
        return self.left > 0

    def step(self) -> None:
        """Runs a step of the engine."""
        self.left -= 1
        self.worker.execute_model()


class SamplingParams:
    """The options for drawing tokens."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings


class PoolingParams(SamplingParams):
    """The options for pooling a result."""
