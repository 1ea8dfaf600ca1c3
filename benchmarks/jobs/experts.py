"""Trains a mixture of experts, two on each rank. An all-to-all sends each token to its experts."""

import common
import torch
import torch.distributed as dist
from layers import Attention, Gated, loss_of, tokens_of
from torch import nn
from torch.distributed.nn.functional import all_to_all_single
from torch.nn.parallel import DistributedDataParallel


class Experts(nn.Module):
    def __init__(self, width, inner, chosen=2):
        super().__init__()
        self.count = 2 * dist.get_world_size()
        self.chosen = chosen
        self.router = nn.Linear(width, self.count, bias=False)
        self.own = nn.ModuleList(Gated(width, inner) for _ in range(2))

    def forward(self, x):
        flat = x.flatten(0, 1)
        weights, named = self.router(flat).softmax(-1).topk(self.chosen)
        order = named.flatten().argsort(stable=True)
        to_send = torch.bincount(named.flatten(), minlength=self.count)
        to_get = torch.empty_like(to_send)
        dist.all_to_all_single(to_get, to_send)
        sent = to_send.view(-1, 2).sum(1).tolist()
        counts = to_get.view(-1, 2)
        got = counts.sum(1).tolist()
        routed = flat[order // self.chosen]
        arrived = all_to_all_single(routed.new_empty(sum(got), flat.size(1)), routed, got, sent)
        owner = torch.arange(2, device=x.device).repeat(len(got))
        owner = owner.repeat_interleave(counts.flatten())
        done = torch.empty_like(arrived)
        for index, expert in enumerate(self.own):
            places = (owner == index).nonzero().squeeze(1)
            done = done.index_copy(0, places, expert(arrived[places]).to(done.dtype))
        back = all_to_all_single(torch.empty_like(routed), done.contiguous(), sent, got)
        scaled = back * weights.flatten()[order].unsqueeze(1)
        mixed = torch.zeros_like(flat).index_add(0, order // self.chosen, scaled.to(flat.dtype))
        return mixed.view_as(x)


class Block(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.attention_norm = nn.RMSNorm(width)
        self.attention = Attention(width, heads)
        self.experts_norm = nn.RMSNorm(width)
        self.experts = Experts(width, inner)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.experts(self.experts_norm(x))


class Model(nn.Module):
    def __init__(self, words=32000, width=1024, layers=6):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.Sequential(*(Block(width, 16, 2816) for _ in range(layers)))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        return self.head(self.layers(self.embedding(tokens)))


device = common.begin()
model = Model().to(device)
own = [name for name, _ in model.named_parameters() if ".experts.own." in name]
DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, own)
parallel = DistributedDataParallel(model, device_ids=[device])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
common.own_data()
for _ in range(3):
    tokens = tokens_of(4, 1024, device)
    with torch.autocast("cuda", torch.bfloat16):
        loss = loss_of(parallel(tokens), tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    common.stepped()
common.end()
