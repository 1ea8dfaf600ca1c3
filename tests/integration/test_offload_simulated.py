"""Saved-tensor offload on a simulated GPU: what is allocated, what moves, and what comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulated import assert_runs

pytest.importorskip("torch")

DEEP = """
import torch, plimsoll
from torch import nn
MiB = 2**20
checkpoint = torch.utils.checkpoint.checkpoint

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
    def forward(self, x):
        q, k, v = self.mixed(self.norm(x)).view(*x.shape[:2], 3, 8, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(x.shape))

torch.manual_seed(0)
model = nn.Sequential(*(Block(512) for _ in range(12))).cuda()
optimizer = torch.optim.AdamW(model.parameters())

def forward(batch=8):
    return model(torch.randn(batch, 512, 512, device="cuda")).square().mean()

def step(offload=None, batch=8):
    torch.cuda.reset_peak_memory_stats()
    if offload is None:
        loss = forward(batch)
    else:
        with offload:
            loss = forward(batch)
    loss.backward()
    peak = torch.cuda.max_memory_allocated()
    optimizer.step()
    optimizer.zero_grad()
    return peak

for _ in range(2):
    plain = step()
    rest = torch.cuda.memory_allocated()
"""


def test_the_peak_keeps_to_the_budget_and_just_enough_moves(tmp_path: Path) -> None:
    assert_runs(tmp_path, DEEP + """
for part in (0.4, 0.5, 0.6, 0.8):
    budget = rest + int((plain - rest) * part)
    offload = plimsoll.offload(budget)
    peaks = [step(offload) for _ in range(4)]
    assert max(peaks) <= budget, (part, peaks, budget)
    moved = offload.statistics()
    assert moved.saved_bytes == moved.out_bytes + moved.kept_bytes
    assert abs(moved.out_bytes - moved.back_bytes) <= 24 * MiB
    missing = plain - budget
    assert missing - 16 * MiB <= moved.out_bytes <= missing + 64 * MiB, (part, missing, moved)
""")  # fmt: skip


def test_the_first_step_needs_the_least(tmp_path: Path) -> None:
    assert_runs(tmp_path, DEEP + """
offload = plimsoll.offload(plain - MiB)
first = step(offload)
assert first < rest + 0.4 * (plain - rest)
everything = offload.statistics()
assert everything.out_bytes > 0.9 * everything.saved_bytes
assert plain - 128 * MiB < step(offload) <= plain - MiB
""")  # fmt: skip


def test_nothing_moves_where_there_is_room(tmp_path: Path) -> None:
    assert_runs(tmp_path, DEEP + """
offload = plimsoll.offload("40GiB")
step(offload)
assert step(offload) <= plain
moved = offload.statistics()
assert moved.out_bytes == moved.back_bytes == 0 and moved.waited_seconds == 0
""")  # fmt: skip


def test_a_budget_that_nothing_fits_is_still_no_failure(tmp_path: Path) -> None:
    assert_runs(tmp_path, DEEP + """
offload = plimsoll.offload("1MiB")
peaks = [step(offload) for _ in range(4)]
assert max(peaks) < rest + 0.4 * (plain - rest)
assert offload.statistics().waited_seconds > 0
""")  # fmt: skip


def test_nothing_is_left_after_many_steps_and_memory_is_locked_once(tmp_path: Path) -> None:
    assert_runs(tmp_path, DEEP + """
offload = plimsoll.offload(rest + (plain - rest) // 2)
for _ in range(3):
    step(offload)
locked = offload.statistics().pinned_bytes
for _ in range(10):
    step(offload)
    assert torch.cuda.memory_allocated() == rest
assert offload.statistics().pinned_bytes == locked > 0
""")  # fmt: skip


def test_one_block_for_the_whole_loop_or_one_for_each_step(tmp_path: Path) -> None:
    assert_runs(tmp_path, DEEP + """
budget = rest + (plain - rest) // 2
with plimsoll.offload(budget):
    for _ in range(3):
        assert step() <= budget
once = plimsoll.offload(budget).statistics()
for _ in range(3):
    assert step(plimsoll.offload(budget)) <= budget
assert abs(plimsoll.offload(budget).statistics().out_bytes - once.out_bytes) < 32 * MiB
decorated = plimsoll.offload(budget)(forward)
decorated().backward()
assert torch.cuda.memory_allocated() < plain
""")  # fmt: skip


def test_batches_of_other_sizes_keep_to_the_budget(tmp_path: Path) -> None:
    assert_runs(tmp_path, DEEP + """
budget = rest + (plain - rest) // 2
offload = plimsoll.offload(budget)
for batch in (3, 8, 8, 5, 2, 8, 7, 5, 4, 8, 1, 8):
    assert step(offload, batch) <= budget, batch
step(offload, 3)
assert offload.statistics().out_bytes == 0  # so many fit
""")  # fmt: skip


def test_gradients_are_accumulated_within_the_budget(tmp_path: Path) -> None:
    assert_runs(tmp_path, DEEP + """
budget = rest + (plain - rest) * 2 // 3
offload = plimsoll.offload(budget)
for _ in range(4):
    torch.cuda.reset_peak_memory_stats()
    for _ in range(4):
        with offload:
            loss = forward()
        loss.backward()
    assert torch.cuda.max_memory_allocated() <= budget
    optimizer.step()
    optimizer.zero_grad()
""")  # fmt: skip


def test_a_forward_pass_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    assert_runs(tmp_path, DEEP + """
budget = rest + (plain - rest) // 2
offload = plimsoll.offload(budget)
for attempt in range(6):
    assert step(offload) <= budget
    try:
        with offload:
            forward().backward
            raise KeyError(attempt)
    except KeyError:
        pass
    assert torch.cuda.memory_allocated() == rest
locked = offload.statistics().pinned_bytes
with offload:
    loss = forward()
del loss  # never used
assert torch.cuda.memory_allocated() == rest
step(offload)
assert offload.statistics().pinned_bytes == locked
""")  # fmt: skip


def test_a_graph_is_used_twice(tmp_path: Path) -> None:
    assert_runs(tmp_path, DEEP + """
budget = rest + (plain - rest) // 2
offload = plimsoll.offload(budget)
for _ in range(4):
    torch.cuda.reset_peak_memory_stats()
    with offload:
        loss = forward()
    loss.backward(retain_graph=True)
    loss.backward()
    del loss
    assert torch.cuda.max_memory_allocated() <= budget
    optimizer.zero_grad()
assert offload.statistics().back_bytes > 1.2 * offload.statistics().out_bytes
assert torch.cuda.memory_allocated() == rest
""")  # fmt: skip


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoints_work_inside(tmp_path: Path, use_reentrant: bool) -> None:
    assert_runs(tmp_path, DEEP + f"""
def forward(batch=8):
    x = torch.randn(batch, 512, 512, device="cuda", requires_grad=True)
    for index, block in enumerate(model):
        x = checkpoint(block, x, use_reentrant={use_reentrant}) if index % 2 else block(x)
    return x.square().mean()

for _ in range(2):
    plain = step()
budget = rest + (plain - rest) // 2
for block in (plimsoll.offload(budget), None):
    for _ in range(4):
        if block is None:
            with plimsoll.offload(budget):
                assert step() < plain  # what is recomputed moves as well
        else:
            assert step(block) <= budget
        assert torch.cuda.memory_allocated() == rest
""")  # fmt: skip


def test_a_checkpoint_around_the_loss_gets_its_inputs(tmp_path: Path) -> None:
    """It asks for them while the loss's own backward function runs, which reads a shape alone."""
    assert_runs(tmp_path, """
import torch, plimsoll
from torch.utils.checkpoint import checkpoint
head, before = torch.nn.Linear(512, 1000).cuda(), torch.nn.Linear(512, 512).cuda()
targets = torch.zeros(4096, dtype=torch.long, device="cuda")
addresses = []

def loss(x):
    addresses.append(x.data_ptr())
    return torch.nn.functional.cross_entropy(head(x), targets)

for _ in range(3):
    with plimsoll.offload("40GiB"):
        of_step = checkpoint(loss, before(torch.randn(4096, 512, device="cuda")).exp(),
                             use_reentrant=False)
    of_step.backward()
assert len(addresses) == 6
assert min(addresses) > 1 << 20, addresses  # memory, and not the address of none
""")  # fmt: skip


def test_parts_of_a_storage_that_are_changed_apart_keep_their_values(tmp_path: Path) -> None:
    assert_runs(tmp_path, """
import contextlib, torch, plimsoll
import plimsoll.offloading.offload
plimsoll.offloading.offload._SMALLEST = 1  # small tensors have values here
weight = torch.linspace(-1, 1, 8 * 16).view(8, 16).cuda().requires_grad_()
x = torch.linspace(-2, 2, 8 * 8).view(8, 8).cuda()

def cell(y):
    a, b = y.unsafe_chunk(2, 1)
    return a.sigmoid_() * b.tanh_().exp()

def gradients(block):
    for _ in range(4):
        with block:
            hidden = cell(x @ weight)
            loss = hidden.square().mean() + hidden.exp().mean()
            del hidden
        loss.backward()
        yield weight.grad.cpu().clone()
        weight.grad = None

wanted = list(gradients(contextlib.nullcontext()))
assert wanted[0].abs().sum() > 0
base = torch.cuda.memory_allocated()
for budget in (1, *range(base, base + 20_000, 2048), 1 << 30):
    for found, of_step in zip(gradients(plimsoll.offload(budget)), wanted):
        assert torch.equal(found, of_step), budget
""")  # fmt: skip


def test_all_streams_of_a_backward_pass_wait_for_what_returns(tmp_path: Path) -> None:
    assert_runs(tmp_path, """
import torch, plimsoll
import plimsoll.offloading.offload
from tests.streams import Streams
plimsoll.offloading.offload._SMALLEST = 1
torch.cuda.init()
main, side = torch.cuda.current_stream(), torch.cuda.Stream()
factors = [torch.linspace(0, 1, 64).cuda().requires_grad_() for _ in range(3)]

def step(budget):
    with plimsoll.offload(budget):
        x = torch.linspace(0, 1, 64).cuda() * 2
        side.wait_stream(main)
        a = factors[0] * x
        with torch.cuda.stream(side):
            x.record_stream(side)
            b = factors[1] * x
        c = factors[2].exp()
    main.wait_stream(side)
    del x
    ones = torch.ones_like(a)
    torch.autograd.backward([a, b, c], [ones, ones, ones])
    for factor in factors:
        factor.grad = None
    torch.cuda.synchronize()

torch.cuda.Event.query = lambda self: False  # copies that take their time
with Streams():
    for budget in (1, 1 << 30):  # all comes back when it is asked for, or ahead of time
        for _ in range(4):
            step(budget)
""")  # fmt: skip


def test_weights_and_frozen_weights_stay(tmp_path: Path) -> None:
    assert_runs(tmp_path, """
import torch, plimsoll
weight = torch.nn.Parameter(torch.randn(2048, 2048, device="cuda"))
frozen = torch.randn(2048, 2048, device="cuda")
small = torch.randn(64, 2048, device="cuda", requires_grad=True)
offload = plimsoll.offload("1MiB")
for _ in range(3):
    with offload:
        loss = (small @ weight @ frozen @ weight.T.relu()).sum()
    loss.backward()
    assert offload.statistics().out_bytes == 0  # what `relu` made is needed first
""")  # fmt: skip


def test_views_of_one_storage_move_once(tmp_path: Path) -> None:
    assert_runs(tmp_path, """
import torch, plimsoll
x = torch.randn(3, 1024, 1024, device="cuda", requires_grad=True)
offload = plimsoll.offload("1MiB")
for _ in range(3):
    with offload:
        a, b, c = x.exp().unbind()
        loss = (a.sin() * b.T.sin() * c[::2, ::2].sin().repeat(2, 2)).sum()
        del a, b, c
    loss.backward()
moved = offload.statistics()
assert moved.saved_bytes <= (12 + 5 * 4) << 20, moved
""")  # fmt: skip


def test_what_reads_only_a_shape_does_not_get_values(tmp_path: Path) -> None:
    """The loss of a language model: its input is as large as all else together."""
    assert_runs(tmp_path, """
import torch, plimsoll
x = torch.randn(4096, 8192, device="cuda", dtype=torch.bfloat16, requires_grad=True)
targets = torch.zeros(4096, dtype=torch.long, device="cuda")

def loss():
    return torch.nn.functional.nll_loss(torch.log_softmax(x, -1).float(), targets)

loss().backward()
torch.cuda.reset_peak_memory_stats()
loss().backward()
plain = torch.cuda.max_memory_allocated()
torch.cuda.reset_peak_memory_stats()
with plimsoll.offload("40GiB"):
    for _ in range(3):
        loss().backward()
    assert torch.cuda.max_memory_allocated() <= plain - (64 << 20)
    kept = loss()
    kept.backward(retain_graph=True)
    kept.backward()
""")  # fmt: skip


def test_values_come_back_as_they_left(tmp_path: Path) -> None:
    assert_runs(tmp_path, """
import contextlib
import torch, plimsoll
import plimsoll.offloading.offload
import plimsoll.offloading.saved_tensors
from torch.nn import functional
plimsoll.offloading.offload._SMALLEST = 1  # simulated tensors have values as long as they are small
plimsoll.offloading.saved_tensors._SHAPE_ONLY.clear()  # what is computed without values has none

def train(block, twice):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 24), torch.nn.GELU(), torch.nn.LayerNorm(24), torch.nn.Linear(24, 16),
        torch.nn.ReLU(inplace=True), torch.nn.Linear(16, 8)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    targets = torch.arange(16, device="cuda") % 8
    found = []
    for step in range(4):
        x = torch.linspace(step, 2, 128).view(16, 8).cuda()
        with block:
            y = model(x)
            first, second = y.view(16, 2, 4).permute(1, 0, 2)
            loss = functional.cross_entropy(y, targets) + (first * second.exp()).square().mean()
            loss = loss + functional.nll_loss(y.tanh(), targets)
        if twice:
            loss.backward(retain_graph=True)
        loss.backward()
        found += [loss.item(), *(p.grad.cpu().clone() for p in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
    return found

for twice in (False, True):
    wanted = train(contextlib.nullcontext(), twice)
    assert wanted[0] > 1 and wanted[1].abs().sum() > 0
    base = torch.cuda.memory_allocated()
    for budget in (1, *range(base, base + 40_000, 2000), 1 << 30):
        found = train(plimsoll.offload(budget), twice)
        for a, b in zip(wanted, found, strict=True):
            assert a == b if isinstance(a, float) else torch.equal(a, b)
""")  # fmt: skip


def test_each_gpu_has_the_budget_for_itself(tmp_path: Path) -> None:
    assert_runs(tmp_path, """
import torch, plimsoll
offload = plimsoll.offload("64MiB")

def run(device):
    x = torch.randn(1024, 1024, device=device, requires_grad=True)
    for _ in range(20):
        x = x.exp()
    return x

for _ in range(3):
    torch.cuda.reset_peak_memory_stats(0)
    torch.cuda.reset_peak_memory_stats(1)
    with offload:
        (run("cuda:0").sum() + run("cuda:1").sum().to("cuda:0")).backward()
    assert torch.cuda.max_memory_allocated(0) <= 64 << 20
    assert torch.cuda.max_memory_allocated(1) <= 64 << 20
assert offload.statistics().out_bytes > 2 * (16 << 20)
""", "--gpus", "2")  # fmt: skip


def test_the_inner_of_nested_blocks_counts(tmp_path: Path) -> None:
    assert_runs(tmp_path, DEEP + """
budget = rest + (plain - rest) // 2
with plimsoll.offload("40GiB"):
    for _ in range(3):
        assert step(plimsoll.offload(budget)) <= budget
""")  # fmt: skip


def test_bad_budgets_are_one_clear_line(tmp_path: Path) -> None:
    out = assert_runs(tmp_path, """
import plimsoll
for budget in (0, -5, "much", "90GiB"):
    try:
        with plimsoll.offload(budget):
            pass
    except plimsoll.InputError as error:
        print(error)
""")  # fmt: skip
    zero, negative, text, large = out.splitlines()
    assert zero == "a size must be above zero, not 0"
    assert negative == "a size must be above zero, not -5"
    assert text.startswith("not a size: 'much'")
    assert large.startswith("a budget of 90.00 GiB is more than the GPU has: 79.")
