"""Makes NVIDIA's Python bindings of the CUDA runtime report the simulated streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def answer_captures(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads `cuda.bindings.runtime`, and lets it see whether a simulated stream is capturing."""
    execute()

    def capture_info(stream: Any) -> tuple[Any, Any]:
        import torch

        del stream  # a simulated capture includes all streams
        is_capturing = torch.cuda.is_current_stream_capturing()
        kinds = module.cudaStreamCaptureStatus
        status = (
            kinds.cudaStreamCaptureStatusActive
            if is_capturing
            else kinds.cudaStreamCaptureStatusNone
        )
        return module.cudaError_t.cudaSuccess, status

    module.cudaStreamGetCaptureInfo = capture_info  # type: ignore[attr-defined]
