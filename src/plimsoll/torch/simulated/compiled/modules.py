"""The modules of PyTorch's compilers and of Triton that are changed on simulated GPUs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from plimsoll.torch.simulated.compiled import inductor
from plimsoll.torch.simulated.compiled.first_calls import PLACES
from plimsoll.torch.simulated.compiled.frames import leave_alone
from plimsoll.torch.simulated.compiled.kernels import simulate_kernels
from plimsoll.torch.simulated.compiled.packages import REFUSING, refuse_packages
from plimsoll.torch.simulated.compiled.settings import compile_here, folder_for, keep_in
from plimsoll.torch.simulated.compiled.triton_driver import add_driver

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from plimsoll.torch.simulated.simulation import Simulation


def compiler_modules(
    simulation: Simulation,
) -> Mapping[str, Callable[[ModuleType, Callable[[], None]], None]]:
    """Maps the name of each module that plimsoll changes to a function that loads and changes it.

    The function's arguments are the module and `execute`, which executes the module's code.
    """
    folder = partial(folder_for, simulation.profiles, simulation.library.lib._name)
    first_calls = simulation.first_calls
    return {
        **dict.fromkeys(PLACES, first_calls.watch),
        **dict.fromkeys(REFUSING, refuse_packages),
        "torch._dynamo.callback": simulation.leftovers.note,
        "torch._dynamo.convert_frame": leave_alone,
        "torch._dynamo.utils": inductor.count_all,
        "torch._inductor.async_compile": compile_here,
        "torch._functorch._aot_autograd.autograd_cache": inductor.compile_anew,
        "torch._functorch.config": inductor.set_defaults,
        "torch._functorch.partitioners": partial(inductor.solve_with_values, simulation.library),
        "torch._inductor.codecache": inductor.tune_again,
        "torch._inductor.config": inductor.set_defaults,
        "torch._inductor.fx_passes.pad_mm": partial(inductor.benchmark_again, first_calls.watch),
        "torch._inductor.runtime.benchmarking": inductor.benchmark_once,
        "torch._inductor.runtime.cache_dir_utils": partial(keep_in, folder),
        "torch._inductor.standalone_compile": inductor.keep_artifacts,
        "triton": partial(simulate_kernels, simulation.kernel_counts, folder),
        "triton.backends.nvidia.driver": partial(add_driver, simulation),
    }
