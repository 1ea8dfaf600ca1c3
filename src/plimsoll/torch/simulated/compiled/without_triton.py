"""torch.compile without Triton: code that needs Triton runs eagerly, and the report says so."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from plimsoll.torch.building.versions import companions, torch_version
from plimsoll.torch.simulated.compiled.assumptions import assume
from plimsoll.torch.simulated.flex_attention import fused_of

if TYPE_CHECKING:
    from types import ModuleType


def compile_without_triton(torch: ModuleType) -> None:
    """Replaces `torch.compile`, so that code for Inductor runs eagerly."""
    compiled = torch.compile

    @functools.wraps(compiled)
    def compile(model: Any = None, *, backend: Any = "inductor", **options: Any) -> Any:  # noqa: A001
        if backend != "inductor":
            return compiled(model, backend=backend, **options)
        assume(
            "torch.compile",
            "it runs eagerly, because Triton is not installed; with it the compiler runs as on a "
            f"GPU: pip install 'triton=={companions(torch_version()).triton}.*'",
        )
        return fused_of if model is None else fused_of(model)

    torch.compile = compile  # type: ignore[attr-defined]
