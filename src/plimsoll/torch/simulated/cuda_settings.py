"""The settings of a CUDA build. Only those of workspaces and of algorithm search have an effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.torch.simulated.simulation import Simulation

_PAIRS = {
    ("_cuda_get_sync_debug_mode", "_cuda_set_sync_debug_mode"): 0,
    ("_cuda_get_cudnn_benchmark_limit", "_cuda_set_cudnn_benchmark_limit"): 10,
    ("_cuda_get_conv_benchmark_empty_cache", "_cudnn_set_conv_benchmark_empty_cache"): True,
    ("_cuda_record_untuned_is_enabled", "_cuda_record_untuned_enable"): False,
}
"""Maps the getter and the setter of each setting to its default in a CUDA build of PyTorch 2.15."""
_TUNING = {
    ("is_enabled", "enable"): False,
    ("tuning_is_enabled", "tuning_enable"): True,
    ("wildcard_fallback_is_enabled", "wildcard_fallback_enable"): False,
    ("get_max_tuning_duration", "set_max_tuning_duration"): 30,
    ("get_max_tuning_iterations", "set_max_tuning_iterations"): 100,
    ("get_cublaslt_requested_algo_count", "set_cublaslt_requested_algo_count"): 8,
    ("get_rotating_buffer_size", "set_rotating_buffer_size"): 0,
    ("get_filename", "set_filename"): "",
}
"""The settings of torch.cuda.tunable. They have no effect: no kernel runs that could be tuned."""


def setting_functions(simulation: Simulation) -> dict[str, Any]:
    """Returns the members of `torch._C` for settings, by name."""
    functions: dict[str, Any] = {}
    tuning = {
        (f"_cuda_tunableop_{read}", f"_cuda_tunableop_{make}"): first
        for (read, make), first in _TUNING.items()
    }
    for (read, make), first in (_PAIRS | tuning).items():
        functions[read], functions[make] = _remembered(first)
    functions |= _search(simulation, functions)
    functions["_cuda_tunableop_set_numerical_check_tolerances"] = lambda *_: None
    functions["_cuda_tunableop_get_results"] = lambda: ()
    functions["_cuda_tunableop_get_validators"] = lambda: ()
    functions["_cuda_tunableop_read_file"] = lambda filename: False
    functions["_cuda_tunableop_clear_all"] = lambda: None
    functions["_cuda_tunableop_push_dynamic_dims_mask"] = lambda bits: 0
    functions["_cuda_tunableop_pop_dynamic_dims_mask"] = lambda handle: None
    return functions | _blas_workspaces(simulation)


def _remembered(first: Any) -> tuple[Callable[[], Any], Callable[..., None]]:
    """Returns the getter and the setter of a new setting that is only stored."""
    value = first

    def make(to: Any, *_: Any) -> None:
        nonlocal value
        value = to

    return lambda: value, make


def _search(simulation: Simulation, settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the setters for cuDNN's algorithm search. They also call the C++ library."""

    def telling(make: Callable[..., None]) -> Callable[..., None]:
        def make_and_tell(to: Any, *_: Any) -> None:
            make(to)
            simulation.library.lib.plimsoll_set_search(
                int(settings["_cuda_get_cudnn_benchmark_limit"]()),
                bool(settings["_cuda_get_conv_benchmark_empty_cache"]()),
            )

        return make_and_tell

    names = ("_cuda_set_cudnn_benchmark_limit", "_cudnn_set_conv_benchmark_empty_cache")
    return {name: telling(settings[name]) for name in names}


def _blas_workspaces(simulation: Simulation) -> dict[str, Any]:
    lib = simulation.library.lib
    functions: dict[str, Any] = {
        "_cuda_clearCublasWorkspaces": lambda: lib.plimsoll_clear_blas_workspaces()
    }

    def set_size(is_lt: int, size: int) -> None:
        if size < 0:
            raise RuntimeError("the size of a workspace must not be negative")
        lib.plimsoll_set_blas_workspace_bytes(is_lt, size)

    for is_lt, name in enumerate(("CublasWorkspaceSize", "CublasLtWorkspaceSize")):
        functions[f"_cuda_get{name}"] = lambda lt=is_lt: int(lib.plimsoll_blas_workspace_bytes(lt))
        functions[f"_cuda_set{name}"] = lambda size, lt=is_lt: set_size(lt, size)
        functions[f"_cuda_reset{name}"] = lambda lt=is_lt: lib.plimsoll_set_blas_workspace_bytes(
            lt, -1
        )
    return functions
