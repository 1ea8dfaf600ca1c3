"""Makes up weights for SGLang; records the stages of its start and the memory that it reports."""

from __future__ import annotations

import functools
import re
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from plimsoll.base.units import GiB
from plimsoll.torch.simulated.libraries.engine_sleep import EngineSleep
from plimsoll.torch.simulated.libraries.engine_stages import EngineStages
from plimsoll.torch.simulated.libraries.made_up import assume_made_up_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from plimsoll.torch.simulated.serving_use import ServingUse
    from plimsoll.torch.simulated.simulation import Simulation

_MADE_UP = {"auto", "safetensors", "fastsafetensors", "pt", "npcache", "mistral"}
"""The values of SGLang's `load_format` for which plimsoll makes up weights in the model's sizes."""
_SHUTDOWN_SECONDS = 60
"""The time that SGLang's processes have to end before SGLang kills them.

It equals the default `wait_timeout` of SGLang's kill_process_tree.
"""
_ABOUT_MEMORY = re.compile("memory", re.IGNORECASE)


def sglang_modules(
    simulation: Simulation,
) -> Mapping[str, Callable[[ModuleType, Callable[[], None]], None]]:
    """Returns a mapping from names of SGLang's modules to the functions that load these modules."""
    stages = _Stages(simulation, "SGLang", "sglang")
    return {
        "sglang.srt.model_executor.model_runner_components.load_model_utils": make_up_weights,
        "sglang.srt.mem_cache.kv_cache_configurator": stages.watch_cache_sizes,
        "sglang.srt.model_executor.model_runner": stages.watch_runner,
        "sglang.srt.managers.scheduler": stages.watch_scheduler,
        "sglang.srt.managers.scheduler_components.weight_updater": stages.watch_sleep,
        "sglang.srt.utils.common": let_schedulers_end,
    }


def make_up_weights(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads the module that chooses how weights are loaded, and makes it choose made-up weights."""
    execute()
    from sglang.srt.runtime_context import get_model

    build = module.build_load_config

    @functools.wraps(build)
    def build_load_config(*arguments: Any, **named: Any) -> Any:
        if str(named.get("load_format") or get_model().load_format).lower() in _MADE_UP:
            assume_made_up_weights("sglang")
            named["load_format"] = "dummy"
        return build(*arguments, **named)

    module.build_load_config = build_load_config  # type: ignore[attr-defined]


def let_schedulers_end(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads the module that kills SGLang's processes, and gives them time to end.

    When a scheduler's process ends, it reports its memory to plimsoll.
    """
    execute()
    kill = module.kill_process_tree

    @functools.wraps(kill)
    def end_and_kill(parent_pid: int | None, *arguments: Any, **named: Any) -> Any:
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(parent_pid).children(recursive=True)
            for child in children:
                child.terminate()
            psutil.wait_procs(children, timeout=_SHUTDOWN_SECONDS)
        return kill(parent_pid, *arguments, **named)

    psutil = module.psutil
    module.kill_process_tree = end_and_kill  # type: ignore[attr-defined]


class _Stages(EngineStages):
    def watch_runner(self, module: ModuleType, execute: Callable[[], None]) -> None:
        """Loads the model runner's module, and wraps the methods that are stages of SGLang's start.

        The runner loads the weights, allocates the cache, and captures CUDA graphs.
        """
        execute()
        runner = module.ModelRunner
        self.staged(runner, "load_model", "weights", _learn_weights)
        self.staged(runner, "alloc_memory_pool", "kv_cache", _learn_cache)
        self.staged(runner, "init_attention_backends", "warm_up")
        self.staged(runner, "init_cuda_graphs", "capture", self._learn_graphs)
        self.staged(runner, "prewarm_sampling", "warm_up")
        self.staged(runner, "post_capture_resize_kv_pool", "kv_cache", _learn_cache)

    def watch_scheduler(self, module: ModuleType, execute: Callable[[], None]) -> None:
        """Loads the scheduler's module, and makes the scheduler note when SGLang has started.

        SGLang has started when `init_model_worker` returns.
        """
        execute()
        # SystemExit ends the scheduler's loop, and then plimsoll's report is written.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        scheduler = module.Scheduler
        self.staged(scheduler, "init_model_worker", None, _learn_started, after="load")
        self.staged(scheduler, "run_batch", None)

    def watch_sleep(self, module: ModuleType, execute: Callable[[], None]) -> None:
        """Loads the module that releases SGLang's memory and takes it again, and wraps its methods.

        SGLang's option for this is `enable_memory_saver`.
        """
        execute()
        EngineSleep(self).watch(
            module.SchedulerWeightUpdaterManager,
            "release_memory_occupation",
            "resume_memory_occupation",
        )

    def watch_cache_sizes(self, module: ModuleType, execute: Callable[[], None]) -> None:
        """Loads the module that chooses the cache's size, and notes if SGLang refuses to start.

        SGLang refuses to start if too little memory is left for the cache.
        """
        execute()
        kinds = (ValueError, RuntimeError)
        self.note_refusal(
            module.KVCacheConfigurator, "configure", kinds, is_refusal=_ABOUT_MEMORY.search
        )

    def _learn_graphs(self, use: ServingUse, runner: Any, result: Any) -> None:
        del result
        use.graph_sizes = len(runner.decode_cuda_graph_capture_bs)
        taken = runner.graph_memory_usage or {}
        self.note_graphs(use, int(sum(taken.values()) * GiB), int(runner.gpu_id))


def _learn_weights(use: ServingUse, runner: Any, result: Any) -> None:
    del result
    use.weights_bytes = int(runner.weight_load_mem_usage * GiB)
    use.max_model_len = int(runner.model_config.context_len)


def _learn_cache(use: ServingUse, runner: Any, result: Any) -> None:
    del result
    use.kv_tokens = int(runner.max_total_num_tokens)
    use.kv_cache_bytes = int(runner.token_to_kv_pool.mem_usage * GiB)


def _learn_started(use: ServingUse, scheduler: Any, result: Any) -> None:
    from sglang.srt.runtime_context import get_schedule

    del result
    use.max_num_seqs = int(scheduler.max_running_requests)
    use.max_num_batched_tokens = int(get_schedule().chunked_prefill_size or 0) or None
    use.utilization = float(get_schedule().mem_fraction_static)
    use.available_bytes = int(scheduler.startup_available_gpu_memory_gb * GiB)
