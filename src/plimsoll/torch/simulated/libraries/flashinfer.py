"""FlashInfer's kernels, which it compiles when they are first called: here they only account.

FlashInfer makes their results and their workspaces in Python, and passes both to the kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.libraries.source_kernels import launch_kernel

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_RELEASE = "flashinfer 0.6.12"
_SAMPLED = {
    "sampling_from_logits": (1,),
    "sampling_from_probs": (1, 2),
    "top_p_sampling_from_probs": (1, 2),
    "top_k_sampling_from_probs": (1, 2),
    "min_p_sampling_from_probs": (1, 2),
    "top_k_top_p_sampling_from_probs": (1, 2),
}
"""By kernel, which of its arguments it writes: numbers of tokens, and whether they are valid."""
_WRITTEN = {
    "softmax": (0, 2),
    "top_p_renorm_probs": (1,),
    "top_k_renorm_probs": (1, 4),
    "top_k_mask_logits": (1, 4),
    "chain_speculative_sampling": (3, 4, 5),
}
"""The same of kernels that write other numbers."""


def stand_in_for_kernels(module: ModuleType, execute: Callable[[], None]) -> None:
    """Load `flashinfer.jit.core`, which then compiles nothing."""
    execute()
    module.JitSpec.build_and_load = lambda spec: _Kernels(spec.name)
    module.JitSpec.load = lambda spec, path: _Kernels(spec.name)  # noqa: ARG005


class _Kernels:
    """Stands in for a compiled module: its attributes are the kernels, by their names."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, kernel: str) -> Callable[..., None]:
        written = {**_SAMPLED, **_WRITTEN}.get(kernel)
        if written is None:
            raise NotImplementedError(
                f"plimsoll does not simulate {kernel} of FlashInfer's module {self._name}; a "
                "program that offers another kernel for it, as vLLM does by attention_backend, "
                "can be simulated with that"
            )

        def launch(*arguments: Any) -> None:
            _launch(arguments, written, draws_tokens=kernel in _SAMPLED)

        return launch


def _launch(arguments: tuple[Any, ...], written: tuple[int, ...], *, draws_tokens: bool) -> None:
    import torch

    made = [arguments[place] for place in written if arguments[place] is not None]
    read = [
        each
        for place, each in enumerate(arguments)
        if isinstance(each, torch.Tensor) and place not in written
    ]
    launch_kernel("flashinfer", _RELEASE, read, made)
    if draws_tokens:
        scores, tokens = arguments[0], arguments[1]
        tokens.random_(0, scores.shape[-1])
