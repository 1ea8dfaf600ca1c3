"""Lists the modules of other libraries that plimsoll changes on simulated GPUs.

A loader is a function that changes one of these modules when a program imports the module. Each
loader was written for some versions of its library. If another version lacks a name that the loader
needs, the library runs without plimsoll's changes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from plimsoll.torch.simulated.compiled.assumptions import assume
from plimsoll.torch.simulated.libraries import (
    bitsandbytes,
    cuda_bindings,
    cute_dsl,
    deep_gemm,
    flashinfer,
    sglang,
    torch_memory_saver,
    torchvision,
    transformers,
    vllm,
)
from plimsoll.torch.simulated.libraries.cuda_extensions import refuse_cuda_extensions
from plimsoll.torch.simulated.libraries.datasets import make_missing_rows
from plimsoll.torch.simulated.libraries.deepspeed_kernels import stand_in_for_kernels
from plimsoll.torch.simulated.libraries.diffusers import make_missing_parts
from plimsoll.torch.simulated.libraries.dynamic_sizes import give_sizes
from plimsoll.torch.simulated.libraries.operations import simulate_operation
from plimsoll.torch.simulated.libraries.safetensors import open_made_checkpoints
from plimsoll.torch.simulated.libraries.sglang_stages import sglang_modules
from plimsoll.torch.simulated.libraries.tokenizers import make_missing_tokenizers
from plimsoll.torch.simulated.libraries.vllm_all_reduce import all_reduce_kernels
from plimsoll.torch.simulated.libraries.vllm_stages import vllm_modules

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import TypeAlias

    from plimsoll.torch.simulated.simulation import Simulation

    _Loader: TypeAlias = Callable[[ModuleType, Callable[[], None]], None]


def library_modules(simulation: Simulation) -> Mapping[str, _Loader]:
    """Returns a mapping from the names of modules to the functions that load these modules.

    Each function is called with the module and with `execute`, which runs the module's code.
    """
    for name, kernel in {**torchvision.KERNELS, **vllm.KERNELS, **sglang.KERNELS}.items():
        simulate_operation(name, kernel)
    for name, kernel in vllm.HOST_KERNELS.items():
        simulate_operation(name, kernel, on="CPU")
    for on, kernels in all_reduce_kernels(simulation).items():
        for name, kernel in kernels.items():
            simulate_operation(name, kernel, on=on)
    loaders: dict[str, _Loader] = {
        "bitsandbytes._ops": bitsandbytes.expect_few_outliers,
        "bitsandbytes.cextension": bitsandbytes.stand_in_for_its_library,
        "cuda.bindings.runtime": cuda_bindings.answer_captures,
        "cutlass.base_dsl.compiler": cute_dsl.stand_in_for_kernels,
        "datasets.load": make_missing_rows,
        "deep_gemm": deep_gemm.stand_in_for_operations,
        "deep_gemm._C": deep_gemm.stand_in_for_products,
        "deepspeed.ops.op_builder.builder": stand_in_for_kernels,
        "diffusers.models.modeling_utils": make_missing_parts,
        "flashinfer.jit.core": flashinfer.stand_in_for_kernels,
        "safetensors": open_made_checkpoints,
        "torch_memory_saver.hooks.mode_preload": torch_memory_saver.preload_by_plimsoll,
        "torchvision.models.detection._utils": torchvision.expect_few_matches,
        "transformers.configuration_utils": transformers.name_missing_configuration,
        "transformers.modeling_utils": transformers.make_missing_weights,
        "transformers.tokenization_utils_base": make_missing_tokenizers,
        "sglang.kernels.jit.utils.compile.loader": sglang.stand_in_for_kernels,
        "sglang.srt.distributed.device_communicators.custom_all_reduce_v2": sglang.tell_all_reduce,
        **sglang_modules(simulation),
        **vllm_modules(simulation),
        "vllm.third_party.deep_gemm._C": deep_gemm.stand_in_for_products,
    }
    return {
        **{name: _or_as_it_is(loader) for name, loader in loaders.items()},
        "torch._library.fake_impl": partial(give_sizes, simulation),
        "torch.utils.cpp_extension": refuse_cuda_extensions,
    }


def _or_as_it_is(loader: _Loader) -> _Loader:
    """Wraps a loader, so that it does not fail if the library lacks a name that the loader needs.

    The library then runs without plimsoll's changes. Errors of the library's own code are raised.
    """

    def load(module: ModuleType, execute: Callable[[], None]) -> None:
        is_executed = False

        def execute_once() -> None:
            nonlocal is_executed
            execute()
            is_executed = True

        try:
            loader(module, execute_once)
        except (AttributeError, ImportError) as error:
            if not is_executed:
                raise
            assume(
                module.__name__,
                f"plimsoll does not know this version of the library ({error}), so the "
                "library runs without plimsoll's changes",
            )

    return load
