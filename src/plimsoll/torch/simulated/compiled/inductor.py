"""Adapts Inductor and Dynamo to simulated GPUs; `kernels` and `triton_driver` adapt Triton."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.compiled.assumptions import assume
from plimsoll.torch.simulated.compiled.triton_driver import clock_mhz

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from plimsoll.torch.simulated.library import Library
    from plimsoll.torch.simulated.simulation import Simulation

_ONCE = {
    "estimation_iters": 1,
    "memory_warmup_iters": 1,
    "benchmark_iters": 1,
    "warmup": 1,
    "rep": 1,
}
"""The number of repetitions in a benchmark: few, because each takes the same memory."""
_MOST_COMPILATIONS = 100_000
_BY_ESTIMATE = "plimsoll chose the fastest kernels by estimated times"
_SETTINGS = {
    # Kernels have to be launched by Triton's launcher, the only one that plimsoll simulates.
    "use_static_cuda_launcher": False,
    # A program's first run benchmarks kernels, and a prediction describes a first run.
    "autotune_local_cache": False,
    "enable_autograd_cache": False,
}


def fit_compiler(torch: ModuleType, simulation: Simulation) -> None:
    """Adapts `torch` itself, before a compiler is imported."""
    torch._utils_internal.max_clock_rate = lambda: clock_mhz(simulation.profiles[0])
    guards = torch._C._dynamo.guards

    def empty_strided(size: Any, stride: Any, dtype: Any) -> Any:
        """Allocates a tensor, in place of PyTorch's `_empty_strided_cuda`.

        Dispatch modes see no calls of either function.
        """
        simulation.leftovers.collect()
        with torch._C._DisableTorchDispatch():
            return torch.empty_strided(size, stride, dtype=dtype, device="cuda")

    guards._empty_strided_cuda = empty_strided


def set_defaults(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads a configuration module of the compiler, and sets `_SETTINGS` in it."""
    execute()
    for name, value in _SETTINGS.items():
        if hasattr(module, name):
            setattr(module, name, value)


def solve_with_values(library: Library, module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads AOTAutograd's partitioner, and gives contents to its host tensors.

    The partitioner chooses which results the forward pass saves for the backward pass. It may
    compute this choice with large host tensors, to which plimsoll normally gives no contents.
    """
    execute()
    choose = module.choose_saved_values_set

    @functools.wraps(choose)
    def chosen(*arguments: Any, **named: Any) -> Any:
        with library.contents_kept():
            return choose(*arguments, **named)

    module.choose_saved_values_set = chosen  # type: ignore[attr-defined]


def count_all(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads `torch._dynamo.utils`. Makes it keep the metrics of more than 64 compilations."""
    execute()
    module.set_compilation_metrics_limit(_MOST_COMPILATIONS)


def benchmark_again(
    load: Callable[[ModuleType, Callable[[], None]], None],
    module: ModuleType,
    execute: Callable[[], None],
) -> None:
    """Loads `torch._inductor.fx_passes.pad_mm`, and hides measurements of earlier runs from it.

    Args:
        load: Loads the module and watches its functions.
        module: The module.
        execute: Executes its code.
    """
    load(module, execute)
    known: dict[str, Any] = {}
    for name in ("should_pad", "base_mm_benchmark_time"):
        setattr(module, f"get_cached_{name}", known.get)
        setattr(module, f"set_cached_{name}", known.__setitem__)


def tune_again(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads `torch._inductor.codecache`. Makes its cache refuse graphs with tuned matrix products.

    Therefore each run tunes the products again.
    """
    execute()
    check = module.FxGraphCache._check_can_cache

    def check_can_cache(*arguments: Any, **named: Any) -> None:
        if module.config.max_autotune or module.config.max_autotune_gemm:
            raise module.BypassFxGraphCache("products are tuned, which takes memory, in each run")
        check(*arguments, **named)

    module.FxGraphCache._check_can_cache = staticmethod(check_can_cache)


def keep_artifacts(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads `torch._inductor.standalone_compile`, and enables AOTAutograd's cache in it.

    The caller of `standalone_compile` can save the compiled graphs. PyTorch then takes the graphs
    from this cache. For all other compilations plimsoll disables the cache.
    """
    execute()
    make = module.standalone_compile

    @functools.wraps(make)
    def compile_to_be_saved(*arguments: Any, **named: Any) -> Any:
        import torch._functorch.config as settings

        with settings.patch(enable_autograd_cache=True):
            return make(*arguments, **named)

    module.standalone_compile = compile_to_be_saved  # type: ignore[attr-defined]


def compile_anew(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads AOTAutograd's cache. Makes it return only graphs that the program itself saved.

    The cache hides graphs that earlier runs compiled, so each run compiles like a first run.
    """
    execute()
    look_up = module.AOTAutogradCache._lookup

    @functools.wraps(look_up)
    def look_up_saved(*arguments: Any, **named: Any) -> Any:
        """Finds a graph only if `aot_config` is None, as when PyTorch loads a saved graph."""
        config = named["aot_config"] if "aot_config" in named else arguments[-1]
        return look_up(*arguments, **named) if config is None else None

    module.AOTAutogradCache._lookup = staticmethod(look_up_saved)


def benchmark_once(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads `torch._inductor.runtime.benchmarking`, and lets it measure each kernel only once."""
    execute()
    for name in ("TritonBenchmarker", "InductorBenchmarker"):
        kind = getattr(module, name, None)
        if kind is not None and "benchmark_gpu" in vars(kind):
            kind.benchmark_gpu = _called_once(kind.benchmark_gpu)


def _called_once(benchmark: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(benchmark)
    def benchmark_gpu(self: Any, _callable: Any, **kwargs: Any) -> Any:
        assume("autotuning", _BY_ESTIMATE)
        return benchmark(self, _callable, **{**kwargs, **_ONCE})

    return benchmark_gpu
