"""Computes cross entropy in chunks of rows, so that only one chunk at a time is in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

_whole = torch.nn.functional.cross_entropy
CHUNKS = 8
"""The number of chunks; the last may be shorter."""
_LEAST_ROWS = 64  # fewer rows are not split into chunks


def cross_entropy(
    input: torch.Tensor,  # noqa: A002  as PyTorch calls it
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Computes `torch.nn.functional.cross_entropy` in eight chunks of rows.

    PyTorch's function keeps all log-probabilities for the backward pass, in float32 under autocast,
    and then allocates their gradients. This function computes the gradients of the logits in the
    forward pass, chunk by chunk. It keeps only these gradients, in the logits' own type. With
    half-precision logits of a large vocabulary, that saves most of a step's peak memory. The result
    differs from that of PyTorch's function by rounding. If the logits are not [rows, classes], the
    targets are not one class for each row, or no gradients are recorded, PyTorch's function
    computes the loss.

    >>> loss = plimsoll.cross_entropy(logits.flatten(0, 1), ids.flatten())  # doctest: +SKIP

    Args:
        input: Logits, [rows, classes].
        target: Classes, [rows].
        weight: As for PyTorch's function, like the following arguments.
        size_average: As for PyTorch's function.
        ignore_index: As for PyTorch's function.
        reduce: As for PyTorch's function.
        reduction: As for PyTorch's function.
        label_smoothing: As for PyTorch's function.
    """
    in_chunks = (
        input.dim() == 2
        and target.dim() == 1
        and not target.is_floating_point()
        and input.shape[0] >= _LEAST_ROWS
        and reduction in ("mean", "sum")
        and size_average is None
        and reduce is None
        and (weight is None or not weight.requires_grad)
        and torch.is_grad_enabled()
        and input.requires_grad
    )
    if not in_chunks:
        return _whole(
            input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing
        )
    total: torch.Tensor = _InChunks.apply(input, target, weight, ignore_index, label_smoothing)
    if reduction == "sum":
        return total
    counted = target != ignore_index
    if weight is None:
        return total / counted.sum()
    return total / (weight.float()[target.clamp(min=0)] * counted).sum()


class _InChunks(torch.autograd.Function):  # type: ignore[misc]
    """The loss summed over rows; its forward pass also computes the gradients of the logits."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        target: torch.Tensor,
        weight: torch.Tensor | None,
        ignore_index: int,
        label_smoothing: float,
    ) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float32, device=logits.device)
        gradients = torch.empty_like(logits)
        places = gradients.chunk(CHUNKS)
        for (rows, classes), place in zip(_chunks(logits, target), places, strict=True):
            with torch.enable_grad():
                part = rows.detach().requires_grad_()
                loss = sum_of_rows(part, classes, weight, ignore_index, label_smoothing)
            (of_part,) = torch.autograd.grad(loss, part)
            place.copy_(of_part)
            total += loss.detach()
            del part, loss, of_part
        ctx.save_for_backward(gradients)
        return total

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        (saved,) = ctx.saved_tensors
        is_last = not torch._C._autograd._get_current_graph_task_keep_graph()
        return saved.mul_(gradient) if is_last else saved * gradient, None, None, None, None


def _chunks(logits: torch.Tensor, target: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(logits.chunk(CHUNKS), target.chunk(CHUNKS), strict=True))


def sum_of_rows(
    rows: torch.Tensor,
    classes: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    label_smoothing: float,
) -> torch.Tensor:
    """Returns the sum of the rows' losses, in float32."""
    with torch.autocast(rows.device.type, enabled=False):
        return _whole(
            rows.float(),
            classes,
            weight,
            ignore_index=ignore_index,
            reduction="sum",
            label_smoothing=label_smoothing,
        )
