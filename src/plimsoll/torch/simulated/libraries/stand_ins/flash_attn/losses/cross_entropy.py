"""flash-attn's cross entropy as a module.

The code follows flash_attn/losses/cross_entropy.py of flash-attn 2.8.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from ..ops.triton.cross_entropy import cross_entropy_loss


class CrossEntropyLoss(nn.Module):  # type: ignore[misc]
    """flash-attn's cross entropy as a module of PyTorch."""

    def __init__(
        self,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        logit_scale: float = 1.0,
        lse_square_scale: float = 0.0,
        inplace_backward: bool = False,
        process_group: Any = None,
        return_z_loss: bool = False,
    ) -> None:
        super().__init__()
        self.ignore_index, self.reduction = ignore_index, reduction
        self.label_smoothing, self.logit_scale = label_smoothing, logit_scale
        self.lse_square_scale, self.inplace_backward = lse_square_scale, inplace_backward
        self.process_group, self.return_z_loss = process_group, return_z_loss

    def forward(self, input: Any, target: Any, precomputed_lse: Any = None) -> Any:  # noqa: A002
        """Returns the loss; with `return_z_loss` also the z-loss (a penalty for large logits).

        `reduction` decides whether a loss is the mean, the sum, or one number for each row.
        """
        made = cross_entropy_loss(
            input,
            target,
            precomputed_lse,
            inplace_backward=self.inplace_backward,
            process_group=self.process_group,
        )
        losses = [self._reduced(one, target) for one in made[: 1 + self.return_z_loss]]
        return tuple(losses) if self.return_z_loss else losses[0]

    def _reduced(self, losses: Any, target: Any) -> Any:
        if self.reduction == "mean":
            return losses.sum() / (target != self.ignore_index).sum()
        return losses.sum() if self.reduction == "sum" else losses
