"""What Inductor and Dynamo need of a simulated GPU, besides Triton."""

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
"""How often a benchmark calls what it measures: however often, it takes the same memory."""
_MOST_COMPILATIONS = 100_000
_BY_ESTIMATE = "what is fastest was chosen by estimated times"
_SETTINGS = {
    # A kernel is launched by Triton's launcher, which is simulated.
    "use_static_cuda_launcher": False,
    # A first run benchmarks, and a prediction is of a first run.
    "autotune_local_cache": False,
    "enable_autograd_cache": False,
}


def fit_compiler(torch: ModuleType, simulation: Simulation) -> None:
    """Fit `torch` itself, before a compiler is imported."""
    torch._utils_internal.max_clock_rate = lambda: clock_mhz(simulation.profiles[0])
    guards = torch._C._dynamo.guards

    def empty_strided(size: Any, stride: Any, dtype: Any) -> Any:
        """As PyTorch's, which no mode of dispatch sees."""
        simulation.leftovers.collect()
        with torch._C._DisableTorchDispatch():
            return torch.empty_strided(size, stride, dtype=dtype, device="cuda")

    guards._empty_strided_cuda = empty_strided


def set_defaults(module: ModuleType, execute: Callable[[], None]) -> None:
    """Load one of the compiler's configurations, with what simulated GPUs need."""
    execute()
    for name, value in _SETTINGS.items():
        if hasattr(module, name):
            setattr(module, name, value)


def solve_with_values(library: Library, module: ModuleType, execute: Callable[[], None]) -> None:
    """Load the partitioner, which computes on the host with tables of any size."""
    execute()
    choose = module.choose_saved_values_set

    @functools.wraps(choose)
    def chosen(*arguments: Any, **named: Any) -> Any:
        with library.contents_kept():
            return choose(*arguments, **named)

    module.choose_saved_values_set = chosen  # type: ignore[attr-defined]


def count_all(module: ModuleType, execute: Callable[[], None]) -> None:
    """Load `torch._dynamo.utils`, which would forget all but the newest 64 compilations."""
    execute()
    module.set_compilation_metrics_limit(_MOST_COMPILATIONS)


def benchmark_again(
    load: Callable[[ModuleType, Callable[[], None]], None],
    module: ModuleType,
    execute: Callable[[], None],
) -> None:
    """Load `torch._inductor.fx_passes.pad_mm`: what earlier runs measured is not looked up.

    Args:
        load: Loads it, with what is watched there.
        module: The module.
        execute: Executes its code.
    """
    load(module, execute)
    known: dict[str, Any] = {}
    for name in ("should_pad", "base_mm_benchmark_time"):
        setattr(module, f"get_cached_{name}", known.get)
        setattr(module, f"set_cached_{name}", known.__setitem__)


def tune_again(module: ModuleType, execute: Callable[[], None]) -> None:
    """Load `torch._inductor.codecache`: graphs are kept, unless their products were tuned."""
    execute()
    check = module.FxGraphCache._check_can_cache

    def check_can_cache(*arguments: Any, **named: Any) -> None:
        if module.config.max_autotune or module.config.max_autotune_gemm:
            raise module.BypassFxGraphCache("products are tuned, which takes memory, in each run")
        check(*arguments, **named)

    module.FxGraphCache._check_can_cache = staticmethod(check_can_cache)


def keep_artifacts(module: ModuleType, execute: Callable[[], None]) -> None:
    """Load `torch._inductor.standalone_compile`, whose callers save what it compiles.

    The saved artifacts come from the cache of graphs with derivatives, which is off elsewhere.
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
    """Load the cache of graphs with their derivatives, where only saved artifacts are looked up.

    A graph that is compiled is never found there: each run is to compile as a first one.
    """
    execute()
    look_up = module.AOTAutogradCache._lookup

    @functools.wraps(look_up)
    def look_up_saved(*arguments: Any, **named: Any) -> Any:
        """Only the loader of an artifact has no configuration of the graph to be compiled."""
        config = named["aot_config"] if "aot_config" in named else arguments[-1]
        return look_up(*arguments, **named) if config is None else None

    module.AOTAutogradCache._lookup = staticmethod(look_up_saved)


def benchmark_once(module: ModuleType, execute: Callable[[], None]) -> None:
    """Load `torch._inductor.runtime.benchmarking`: the simulated clock says the same each time."""
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
