"""Stands in for FlashInfer's kernels. The stand-ins take time, and compute nothing.

FlashInfer's Python code allocates a kernel's results and workspaces before it launches the kernel.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.libraries.source_kernels import (
    launch_kernel,
    launch_unknown_kernel,
    note_kernel,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_RELEASE = "flashinfer 0.6.12"
_BLOCK = 128
_SAMPLED = {
    "sampling_from_logits": (1,),
    "sampling_from_probs": (1, 2),
    "top_p_sampling_from_probs": (1, 2),
    "top_k_sampling_from_probs": (1, 2),
    "min_p_sampling_from_probs": (1, 2),
    "top_k_top_p_sampling_from_probs": (1, 2),
}
"""Maps each kernel that draws tokens to the positions of the arguments that it writes.

Argument 1 has the tokens. Argument 2, where listed, tells for each token whether it is valid.
"""
_WRITTEN = {
    "softmax": (0, 2),
    "top_p_renorm_probs": (1,),
    "top_k_renorm_probs": (1, 4),
    "top_k_mask_logits": (1, 4),
    "chain_speculative_sampling": (3, 4, 5),
    "trtllm_lamport_initialize": (),
    "trtllm_allreduce_fusion": (11, 13, 14, 15, 16),
}
"""The kernels that draw no tokens, with the positions of the arguments that they write.

The all-reduce kernels also write to buffers that are passed as integer addresses.
"""
_ANSWERING = ("get_", "init", "plan", "workspace")
"""Words in the names of kernels whose results the caller reads.

plimsoll cannot compute such a result. So it refuses these kernels, unless it simulates them.
"""
_ATTENTION = ("paged_run", "ragged_run")
_BLOCK_PRODUCTS = "fp8_blockscale_gemm"


def stand_in_for_kernels(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads `flashinfer.jit.core`, and makes it return stand-ins instead of compiled modules."""
    execute()
    module.JitSpec.build_and_load = lambda spec: _Kernels(spec.name)
    module.JitSpec.load = lambda spec, path: _Kernels(spec.name)  # noqa: ARG005


class _Kernels:
    """Stands in for a compiled module: its attributes are the kernels."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, kernel: str) -> Callable[..., Any]:
        if _BLOCK_PRODUCTS in self._name and kernel in ("init", "set_deepgemm_jit_include_dirs"):
            return _BlockProducts if kernel == "init" else lambda *_: None
        written = {**_SAMPLED, **_WRITTEN}.get(kernel)
        is_answering = any(part in kernel for part in (*_ANSWERING, *_ATTENTION))
        if written is None and not is_answering:
            return functools.partial(_launch_unknown, f"{self._name}::{kernel}")
        if written is None:
            raise NotImplementedError(
                f"plimsoll does not simulate {kernel} of FlashInfer's module {self._name}; a "
                "program that offers another kernel for it, as vLLM and SGLang do by "
                "attention_backend, can be simulated with that"
            )

        def launch(*arguments: Any) -> None:
            assert written is not None
            _launch(arguments, written, draws_tokens=kernel in _SAMPLED)

        return launch


class _BlockProducts:
    """Stands in for matrix products of 8-bit numbers with a scale for each block of 128."""

    def get_workspace_size(self, rows: int, columns: int, terms: int) -> int:
        """Returns the bytes for 8-bit copies of both operands and for their scales."""
        blocks = -(-terms // _BLOCK)
        of_rows = -(-rows // 4) * 4 * terms + -(-rows // 32) * 32 * blocks * 4
        return of_rows + columns * terms + blocks * -(-columns // _BLOCK) * 4

    def configure_workspace(self, workspace: Any) -> None:
        """Does nothing: the caller holds the workspace."""

    def run_gemm(self, left: Any, right: Any, out: Any, *_: Any) -> None:
        """Launches the matrix product; its assumed speed is twice that of half precision."""
        import torch

        note_kernel("flashinfer", _RELEASE)
        sizes = [0.5, *out.shape, left.shape[-1]]
        torch.ops.plimsoll.launch_product([out], sizes, torch.half)
        del right


def _launch_unknown(name: str, *arguments: Any) -> None:
    note_kernel("flashinfer", _RELEASE)
    launch_unknown_kernel(f"flashinfer {name}", arguments)


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
