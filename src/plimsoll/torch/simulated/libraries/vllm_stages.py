"""Notes the stages of vLLM's start and the memory that vLLM reports, and makes up weights."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.compiled.settings import compiled_folder
from plimsoll.torch.simulated.libraries.engine_sleep import EngineSleep
from plimsoll.torch.simulated.libraries.engine_stages import EngineStages
from plimsoll.torch.simulated.libraries.made_up import assume_made_up_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from plimsoll.torch.simulated.serving_use import ServingUse
    from plimsoll.torch.simulated.simulation import Simulation

_MADE_UP = {"auto", "hf", "safetensors", "fastsafetensors", "pt", "mistral", "runai_streamer"}
"""Formats of weights that plimsoll replaces by made-up weights of the same sizes."""

_SHUTDOWN_SECONDS = 600
"""The time after which vLLM kills an engine or worker that has not ended; vLLM's default is 5."""


def vllm_modules(
    simulation: Simulation,
) -> Mapping[str, Callable[[ModuleType, Callable[[], None]], None]]:
    """Returns the functions that load modules of vLLM, by the module's name."""
    stages = _Stages(simulation, "vLLM", "vllm")
    return {
        "vllm.engine.arg_utils": make_up_weights,
        "vllm.model_executor.models.registry": keep_model_facts,
        "vllm.v1.worker.gpu.sample.sampler": stages.count_sampled,
        "vllm.v1.executor.multiproc_executor": let_workers_end,
        "vllm.v1.core.kv_cache_utils": stages.watch_cache_sizes,
        "vllm.v1.worker.gpu_model_runner": stages.watch_runner,
        "vllm.v1.worker.gpu.model_runner": stages.watch_runner,
        "vllm.v1.worker.gpu_worker": stages.watch_worker,
        "vllm.v1.utils": let_engines_end,
        "vllm.v1.worker.utils": stages.watch_request,
    }


def make_up_weights(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads `vllm.engine.arg_utils`, and makes vLLM use made-up weights.

    Weights from files would take host memory and time.
    """
    execute()
    create = module.EngineArgs.create_load_config

    @functools.wraps(create)
    def create_load_config(self: Any) -> Any:
        if str(self.load_format).lower() in _MADE_UP:
            assume_made_up_weights("vllm")
            self.load_format = "dummy"
        return create(self)

    module.EngineArgs.create_load_config = create_load_config


def keep_model_facts(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads vLLM's list of models, and keeps the models' properties for the next prediction.

    vLLM starts a process to find a model's properties. plimsoll stores them in the folder
    where it also stores code that was compiled for simulated GPUs.
    """
    execute()
    module._LazyRegisteredModel._get_cache_dir = staticmethod(
        lambda: compiled_folder() / "vllm-models"
    )


def let_workers_end(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads the module that starts vLLM's workers, and gives them time to end.

    When a worker ends, it reports its memory to plimsoll.
    """
    execute()
    del module
    os.environ.setdefault("VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS", str(_SHUTDOWN_SECONDS))


def let_engines_end(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads the module that ends vLLM's engine processes, and gives them time to end.

    When an engine process ends, it reports its memory to plimsoll.
    """
    execute()
    shutdown = module.shutdown

    @functools.wraps(shutdown)
    def wait_and_shutdown(processes: Any, timeout: float | None = None) -> Any:
        return shutdown(processes, max(timeout or 0, _SHUTDOWN_SECONDS))

    module.shutdown = wait_and_shutdown  # type: ignore[attr-defined]


class _Stages(EngineStages):
    """Notes the stages of one engine."""

    def watch_worker(self, module: ModuleType, execute: Callable[[], None]) -> None:
        """Loads the worker's module, and makes the worker's methods note which stage vLLM is in."""
        execute()
        worker = module.Worker
        self.staged(worker, "load_model", "weights", _learn_weights)
        self.staged(worker, "determine_available_memory", "profiling", _learn_profile)
        self.staged(worker, "initialize_from_config", "kv_cache")
        self.staged(worker, "compile_or_warm_up_model", "warm_up", _learn_started, after="load")
        for name in ("execute_model", "sample_tokens"):
            self.staged(worker, name, None)
        self._note_cache(worker)
        EngineSleep(self).watch(worker, "sleep", "wake_up", level_of=_level)

    def count_sampled(self, module: ModuleType, execute: Callable[[], None]) -> None:
        """Loads vLLM's sampler, and makes plimsoll compute how many tokens each request gets.

        The engine's next step depends on these numbers. On a real GPU, one of vLLM's kernels
        counts the tokens. Here the host counts them: a request gets a token once its whole prompt
        is computed.
        """
        execute()
        sample = module.Sampler.__call__
        tell = self.simulation.watchers.guarded("how many tokens are sampled", _tell_sampled)

        @functools.wraps(sample)
        def call(this: Any, *arguments: Any, **named: Any) -> Any:
            output = sample(this, *arguments, **named)
            tell(output, [*arguments, *named.values()])
            return output

        module.Sampler.__call__ = call

    def watch_runner(self, module: ModuleType, execute: Callable[[], None]) -> None:
        """Loads the model runner's module, and notes the memory that captured CUDA graphs take."""
        execute()
        runner = module.GPUModelRunner
        if "capture_model" in vars(runner):
            self.staged(runner, "capture_model", "capture", self._learn_graphs)

    def _learn_graphs(self, use: ServingUse, runner: Any, result: Any) -> None:
        self.note_graphs(use, int(result or 0), runner.device.index or 0)
        use.graph_sizes = len(runner.compilation_config.cudagraph_capture_sizes or ())

    def watch_cache_sizes(self, module: ModuleType, execute: Callable[[], None]) -> None:
        """Loads the module that chooses the cache's size, and notes if vLLM refuses to start.

        vLLM refuses to start if too little memory is left for the cache.
        """
        execute()
        self.note_refusal(module, "_check_enough_kv_cache_memory", (ValueError,), _learn_lack)

    def watch_request(self, module: ModuleType, execute: Callable[[], None]) -> None:
        """Loads the worker's helpers, and notes if vLLM refuses to start.

        vLLM refuses to start if other programs use too much of the card.
        """
        execute()
        self.note_refusal(module, "request_memory", (ValueError,), _learn_lack)

    def _note_cache(self, worker: Any) -> None:
        make = worker.initialize_from_config
        guarded = self.simulation.watchers.guarded

        @functools.wraps(make)
        def initialize_from_config(this: Any, sizes: Any, *further: Any, **named: Any) -> Any:
            guarded("a serving engine's cache", _learn_cache)(self.use(), this, sizes)
            return make(this, sizes, *further, **named)

        worker.initialize_from_config = initialize_from_config


def _level(level: int = 1, *further: Any, **named: Any) -> int:
    del further, named
    return level


def _tell_sampled(output: Any, arguments: list[Any]) -> None:
    import torch

    batch = next((each for each in arguments if hasattr(each, "prefill_len_np")), None)
    lengths = getattr(batch, "seq_lens_cpu_upper_bound", None)
    if batch is None or lengths is None or getattr(output, "num_sampled", None) is None:
        return
    known = lengths[: batch.num_reqs] >= torch.from_numpy(batch.prefill_len_np)
    output.num_sampled.copy_(known.to(output.num_sampled.dtype))


def _learn_started(use: ServingUse, worker: Any, result: Any) -> None:
    del worker, result
    # The engine has started, so values from an earlier failed attempt are dropped.
    use.refusal = use.missing_bytes = use.fitting_len = None


def _learn_weights(use: ServingUse, worker: Any, result: Any) -> None:
    del result
    use.weights_bytes = int(worker.model_runner.model_memory_usage)
    config = worker.vllm_config
    use.max_model_len = int(config.model_config.max_model_len)
    use.max_num_seqs = int(config.scheduler_config.max_num_seqs)
    use.max_num_batched_tokens = int(config.scheduler_config.max_num_batched_tokens)
    use.utilization = float(config.cache_config.gpu_memory_utilization)


def _learn_profile(use: ServingUse, worker: Any, result: Any) -> None:
    del result
    use.activation_bytes = getattr(worker, "peak_activation_memory", None)
    use.outside_bytes = getattr(worker, "non_torch_memory", None)
    use.graph_bytes = 0


def _learn_cache(use: ServingUse, worker: Any, sizes: Any) -> None:
    from vllm.v1.core import kv_cache_utils

    use.kv_cache_bytes = sum(int(tensor.size) for tensor in sizes.kv_cache_tensors)
    use.max_model_len = int(worker.vllm_config.model_config.max_model_len)
    groups = sizes.kv_cache_groups
    if not groups:
        return
    capacity = getattr(kv_cache_utils, "get_kv_cache_capacity", None)
    if capacity is not None:
        use.kv_tokens = int(capacity(worker.vllm_config, sizes)[0])
    else:
        rows = min(group.kv_cache_spec.block_size for group in groups)
        use.kv_tokens = sizes.num_blocks // len(groups) * rows


def _learn_lack(use: ServingUse, values: list[Any]) -> None:
    """Notes how much memory is missing, from the arguments of vLLM's failed check."""
    if hasattr(values[0], "free_memory"):
        snapshot, cache = values[:2]
        asked = int(snapshot.total_memory * cache.gpu_memory_utilization)
        use.missing_bytes = asked - int(snapshot.free_memory)
        use.utilization = float(cache.gpu_memory_utilization)
        return
    available, needed = values[:2]
    use.missing_bytes = int(needed()) - int(available)
    if available > 0 and len(values) > 3:
        use.fitting_len = int(values[3](available)) or None
