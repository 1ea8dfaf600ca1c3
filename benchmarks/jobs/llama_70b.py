"""Trains a Llama of 70 billion parameters on 512 ranks: FSDP, tensor and pipeline parallel.

plimsoll predict --gpu H100 --world 512 --ranks distinct benchmarks/jobs/llama_70b.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F

WIDTH, HEADS, KEYS, INNER, LAYERS, WORDS, LENGTH = 8192, 64, 8, 28672, 80, 128256, 4096
STAGES, PARTS, BATCHES = 4, 8, 8
OF_BLOCK = {
    "attention_norm": SequenceParallel(),
    "gated_norm": SequenceParallel(),
    "attention": PrepareModuleInput(
        input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
    ),
    "attention.query": ColwiseParallel(),
    "attention.key": ColwiseParallel(),
    "attention.value": ColwiseParallel(),
    "attention.out": RowwiseParallel(output_layouts=Shard(1)),
    "gated": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
    "gated.gate": ColwiseParallel(),
    "gated.up": ColwiseParallel(),
    "gated.down": RowwiseParallel(output_layouts=Shard(1)),
}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.size = WIDTH // HEADS
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, KEYS * self.size, bias=False)
        self.value = nn.Linear(WIDTH, KEYS * self.size, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape
        parts = [
            project(x).view(batch, length, -1, self.size).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        ]
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, INNER, bias=False)
        self.up = nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(WIDTH), Attention()
        self.gated_norm, self.gated = nn.RMSNorm(WIDTH), Gated()

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.gated(self.gated_norm(x))


class Stage(nn.Module):
    """The layers of one pipeline stage."""

    def __init__(self, index):
        super().__init__()
        is_last = index == STAGES - 1
        self.embedding = nn.Embedding(WORDS, WIDTH) if index == 0 else None
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS // STAGES))
        self.norm = nn.RMSNorm(WIDTH) if is_last else None
        self.head = nn.Linear(WIDTH, WORDS, bias=False) if is_last else None

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None else self.head(self.norm(x))


def parallelize(model, parts, data):
    plan = {}
    if model.embedding is not None:
        plan["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    if model.head is not None:
        plan["norm"] = SequenceParallel()
        plan["head"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
    parallelize_module(model, parts, plan)
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        parallelize_module(layer, parts, OF_BLOCK)
        fully_shard(layer, mesh=data, mp_policy=precision, reshard_after_forward=False)
    fully_shard(model, mesh=data, mp_policy=precision, reshard_after_forward=False)


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl")
world = dist.get_world_size()
mesh = init_device_mesh(
    "cuda", (STAGES, world // (STAGES * PARTS), PARTS), mesh_dim_names=("stage", "data", "part")
)
index = mesh["stage"].get_local_rank()
with torch.device("meta"):
    model = Stage(index)
parallelize(model, mesh["part"], mesh["data"])
model.to_empty(device=device)
for parameter in model.parameters():
    nn.init.normal_(parameter, std=0.02)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
stage = PipelineStage(model, index, STAGES, device, group=mesh["stage"].get_group())
schedule = Schedule1F1B(stage, BATCHES, loss_of)
for _ in range(2):
    tokens, targets = torch.randint(WORDS, (2, BATCHES, LENGTH), device=device)
    if index == 0:
        schedule.step(tokens)
    else:
        schedule.step(**({"target": targets} if index == STAGES - 1 else {}))
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
