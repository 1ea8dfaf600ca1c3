"""Liger's layers and losses beside PyTorch's: norms, SwiGLU, GeGLU, and distillation's losses.

Needs: liger-kernel, transformers
"""

import torch
from liger_kernel.transformers import (
    LigerCrossEntropyLoss,
    LigerFusedLinearCrossEntropyLoss,
    LigerJSD,
    LigerKLDIVLoss,
    LigerLayerNorm,
    LigerRMSNorm,
)
from liger_kernel.transformers.functional import liger_geglu, liger_swiglu

ROWS, WIDTH, VOCABULARY = 4096, 2048, 32000


class Head(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = LigerRMSNorm(WIDTH)
        self.last = LigerLayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.words = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = self.up(self.first(x)).chunk(2, dim=-1)
        x = x + self.down(liger_swiglu(gate, value) + liger_geglu(gate, value))
        return self.last(x)


def main() -> None:
    torch.manual_seed(0)
    head = Head().to("cuda", torch.bfloat16)
    x = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
    labels = torch.randint(VOCABULARY, (ROWS,), device="cuda")
    for _ in range(2):
        logits = head.words(head(x))
        LigerCrossEntropyLoss()(logits, labels).backward()
        LigerFusedLinearCrossEntropyLoss()(head.words.weight, head(x), labels).backward()
        teacher = torch.randn_like(logits[:512]).log_softmax(-1)
        student = head.words(head(x[:512])).log_softmax(-1)
        (LigerJSD()(student, teacher) + LigerKLDIVLoss()(student, teacher.exp())).backward()
        head.zero_grad()
    print("done: 2 steps")


main()
