"""Reinforcement learning on one card: a policy generates, learns, and generates again.

The trainer takes 4.5 GiB and the generator 4.8 GiB, but the card has only 8 GiB. So the two take
turns: while one works, plimsoll takes the memory of the other off the card. Run the script on a
GPU, or without a GPU:

    plimsoll run --simulate 'RTX 4060 Laptop' --allocator elastic --host-memory 32GiB \
      examples/colocated.py

docs/colocated.md says more.
"""

from __future__ import annotations

import torch
from torch import nn

import plimsoll

ROUNDS, LAYERS, WIDTH, BATCH, TOKENS = 3, 24, 4096, 16, 32768
GIB = 1 << 30


def chain(**kind: object) -> nn.Sequential:
    """Return the policy, a chain of linear layers."""
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False, **kind) for _ in range(LAYERS)))


class Trainer:
    """The policy in full precision, with its optimizer."""

    def __init__(self) -> None:
        with plimsoll.region("training"):
            self.policy = chain(device="cuda")
            self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=1e-4, fused=True)

    def learn(self, experience: torch.Tensor) -> None:
        """Make one training step."""
        self.policy(experience).square().mean().backward()
        with plimsoll.region("training"):  # the state of the optimizer is made in its first step
            self.optimizer.step()
        self.optimizer.zero_grad()


class Generator:
    """The policy in half precision, its cache, and a CUDA graph of one step of generation."""

    def __init__(self) -> None:
        with plimsoll.region("weights"):
            self.policy = chain(device="cuda", dtype=torch.bfloat16).requires_grad_(False)
        with plimsoll.region("kv-cache"):
            self.cache = torch.zeros(TOKENS, BATCH, WIDTH, device="cuda", dtype=torch.bfloat16)
        self.prompt = torch.randn(BATCH, WIDTH, device="cuda", dtype=torch.bfloat16)
        self.step()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=plimsoll.graph_pool("graphs")):
            self.answer = self.step()

    def step(self) -> torch.Tensor:
        """Generate one answer; the CUDA graph captures this."""
        answer = self.policy(self.prompt)
        self.cache[0] = answer
        return answer

    def generate(self) -> torch.Tensor:
        """Generate experience for the trainer."""
        self.graph.replay()
        return self.answer.float()


def main() -> None:
    """Run some rounds of generating and learning."""
    plimsoll.install()
    trainer = Trainer()
    plimsoll.pause("training")
    generator = Generator()
    for number in range(ROUNDS):
        experience = generator.generate()

        plimsoll.pause("kv-cache", backup="drop")  # useless once `learn` has changed the weights
        plimsoll.pause("weights", "graphs")
        plimsoll.resume("training")
        trainer.learn(experience)

        plimsoll.resume("weights", "graphs")
        generator.policy.load_state_dict(trainer.policy.state_dict())
        plimsoll.pause("training")
        plimsoll.resume("kv-cache")
        free, total = torch.cuda.mem_get_info()
        print(f"round {number + 1}: {(total - free) / GIB:.2f} GiB of the card in use")


if __name__ == "__main__":
    main()
