"""Tests saved-tensor offload on a simulated GPU: allocations, and moves to the host and back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import plimsoll
import plimsoll.offloading.offload as offload_module
from plimsoll.offloading import saved_storage
from tests.simulated import on_simulated_gpus, output_of

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from tests.streams import Streams  # noqa: E402

MIB = 2**20


class Block(torch.nn.Module):  # type: ignore[misc, name-defined]
    """An attention block with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.mixed = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        q, k, v = self.mixed(self.norm(x)).view(*x.shape[:2], 3, 8, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(x.shape))


class Deep:
    """Trains a model of twelve blocks; measures memory at a step's peak and between steps."""

    def __init__(self, checkpointed: Callable[[Block, Any], Any] | None = None) -> None:
        """Makes the model; with `checkpointed`, every second block runs under a checkpoint."""
        torch.manual_seed(0)
        self.checkpointed = checkpointed
        self.model = torch.nn.Sequential(*(Block(512) for _ in range(12))).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        for _ in range(2):
            self.plain = self.step()
            self.rest = torch.cuda.memory_allocated()

    def between(self, part: float) -> int:
        """Returns a budget with room for this fraction of the saved tensors."""
        return int(self.rest + (self.plain - self.rest) * part)

    def forward(self, batch: int = 8) -> Any:
        """Returns the loss of a batch."""
        if self.checkpointed is None:
            return self.model(torch.randn(batch, 512, 512, device="cuda")).square().mean()
        x = torch.randn(batch, 512, 512, device="cuda", requires_grad=True)
        for index, block in enumerate(self.model):
            x = self.checkpointed(block, x) if index % 2 else block(x)
        return x.square().mean()

    def step(self, offload: plimsoll.offload | None = None, batch: int = 8) -> int:
        """Trains on a batch. Returns the bytes allocated at the peak."""
        torch.cuda.reset_peak_memory_stats()
        if offload is None:
            loss = self.forward(batch)
        else:
            with offload:
                loss = self.forward(batch)
        loss.backward()
        peak = int(torch.cuda.max_memory_allocated())
        self.optimizer.step()
        self.optimizer.zero_grad()
        return peak


@pytest.mark.long
@on_simulated_gpus()
def test_the_peak_keeps_to_the_budget_and_just_enough_moves() -> None:
    deep = Deep()
    for part in (0.4, 0.5, 0.6, 0.8):
        budget = deep.between(part)
        offload = plimsoll.offload(budget)
        peaks = [deep.step(offload) for _ in range(4)]
        assert max(peaks) <= budget, (part, peaks, budget)
        moved = offload.statistics()
        assert moved.saved_bytes == moved.out_bytes + moved.kept_bytes
        assert abs(moved.out_bytes - moved.back_bytes) <= 24 * MIB
        missing = deep.plain - budget
        assert missing - 16 * MIB <= moved.out_bytes <= missing + 64 * MIB, (part, missing, moved)


@on_simulated_gpus()
def test_the_first_step_needs_the_least() -> None:
    deep = Deep()
    offload = plimsoll.offload(deep.plain - MIB)
    first = deep.step(offload)
    assert first < deep.between(0.4)
    everything = offload.statistics()
    assert everything.out_bytes > 0.9 * everything.saved_bytes
    assert deep.plain - 128 * MIB < deep.step(offload) <= deep.plain - MIB


@on_simulated_gpus()
def test_nothing_moves_where_there_is_room() -> None:
    deep = Deep()
    offload = plimsoll.offload("40GiB")
    deep.step(offload)
    assert deep.step(offload) <= deep.plain
    moved = offload.statistics()
    assert moved.out_bytes == moved.back_bytes == 0
    assert moved.waited_seconds == 0


@pytest.mark.long
@on_simulated_gpus()
def test_a_budget_that_nothing_fits_is_still_no_failure() -> None:
    deep = Deep()
    offload = plimsoll.offload("1MiB")
    peaks = [deep.step(offload) for _ in range(4)]
    assert max(peaks) < deep.between(0.4)
    assert offload.statistics().waited_seconds > 0


@pytest.mark.long
@on_simulated_gpus()
def test_nothing_is_left_after_many_steps_and_memory_is_locked_once() -> None:
    deep = Deep()
    offload = plimsoll.offload(deep.between(0.5))
    for _ in range(3):
        deep.step(offload)
    locked = offload.statistics().pinned_bytes
    for _ in range(10):
        deep.step(offload)
        assert torch.cuda.memory_allocated() == deep.rest
    assert offload.statistics().pinned_bytes == locked > 0


@pytest.mark.long
@on_simulated_gpus()
def test_one_block_for_the_whole_loop_or_one_for_each_step() -> None:
    deep = Deep()
    budget = deep.between(0.5)
    with plimsoll.offload(budget):
        for _ in range(3):
            assert deep.step() <= budget
    once = plimsoll.offload(budget).statistics()
    for _ in range(3):
        assert deep.step(plimsoll.offload(budget)) <= budget
    assert abs(plimsoll.offload(budget).statistics().out_bytes - once.out_bytes) < 32 * MIB
    decorated = plimsoll.offload(budget)(deep.forward)
    decorated().backward()
    assert torch.cuda.memory_allocated() < deep.plain


@pytest.mark.long
@on_simulated_gpus()
def test_batches_of_other_sizes_keep_to_the_budget() -> None:
    deep = Deep()
    budget = deep.between(0.5)
    offload = plimsoll.offload(budget)
    for batch in (3, 8, 8, 5, 2, 8, 7, 5, 4, 8, 1, 8):
        assert deep.step(offload, batch) <= budget, batch
    deep.step(offload, 3)
    assert offload.statistics().out_bytes == 0  # three samples fit without offloading


@pytest.mark.long
@on_simulated_gpus()
def test_gradients_are_accumulated_within_the_budget() -> None:
    deep = Deep()
    budget = deep.between(2 / 3)
    offload = plimsoll.offload(budget)
    for _ in range(4):
        torch.cuda.reset_peak_memory_stats()
        for _ in range(4):
            with offload:
                loss = deep.forward()
            loss.backward()
        assert torch.cuda.max_memory_allocated() <= budget
        deep.optimizer.step()
        deep.optimizer.zero_grad()


@pytest.mark.long
@on_simulated_gpus()
def test_a_forward_pass_that_fails_leaves_nothing_behind() -> None:
    deep = Deep()
    budget = deep.between(0.5)
    offload = plimsoll.offload(budget)
    for attempt in range(6):
        assert deep.step(offload) <= budget
        try:
            with offload:
                deep.forward()
                raise KeyError(attempt)
        except KeyError:
            pass
        assert torch.cuda.memory_allocated() == deep.rest
    locked = offload.statistics().pinned_bytes
    with offload:
        loss = deep.forward()
    del loss  # no backward pass uses the offloaded tensors
    assert torch.cuda.memory_allocated() == deep.rest
    deep.step(offload)
    assert offload.statistics().pinned_bytes == locked


@pytest.mark.long
@on_simulated_gpus()
def test_a_graph_is_used_twice() -> None:
    deep = Deep()
    budget = deep.between(0.5)
    offload = plimsoll.offload(budget)
    for _ in range(4):
        torch.cuda.reset_peak_memory_stats()
        with offload:
            loss = deep.forward()
        loss.backward(retain_graph=True)
        loss.backward()
        del loss
        assert torch.cuda.max_memory_allocated() <= budget
        deep.optimizer.zero_grad()
    assert offload.statistics().back_bytes > 1.2 * offload.statistics().out_bytes
    assert torch.cuda.memory_allocated() == deep.rest


@pytest.mark.long
@pytest.mark.parametrize("use_reentrant", [True, False])
@on_simulated_gpus()
def test_checkpoints_work_inside(use_reentrant: bool) -> None:
    deep = Deep(partial(checkpoint, use_reentrant=use_reentrant))
    budget = deep.between(0.5)
    for block in (plimsoll.offload(budget), None):
        for _ in range(4):
            if block is None:
                with plimsoll.offload(budget):
                    # tensors saved during recomputation are offloaded as well
                    assert deep.step() < deep.plain
            else:
                assert deep.step(block) <= budget
            assert torch.cuda.memory_allocated() == deep.rest


@on_simulated_gpus()
def test_a_checkpoint_around_the_loss_gets_its_inputs() -> None:
    """The backward pass recomputes a loss. To do so, it needs the loss's input in real memory."""
    head, before = torch.nn.Linear(512, 1000).cuda(), torch.nn.Linear(512, 512).cuda()
    targets = torch.zeros(4096, dtype=torch.long, device="cuda")
    addresses = []

    def loss(x: Any) -> Any:
        addresses.append(x.data_ptr())
        return functional.cross_entropy(head(x), targets)

    for _ in range(3):
        with plimsoll.offload("40GiB"):
            of_step = checkpoint(
                loss, before(torch.randn(4096, 512, device="cuda")).exp(), use_reentrant=False
            )
        of_step.backward()
    assert len(addresses) == 6
    # The inputs are in real memory: a tensor without memory would have the address 0.
    assert min(addresses) > 1 << 20, addresses


@on_simulated_gpus()
def test_parts_of_a_storage_that_are_changed_apart_keep_their_values() -> None:
    # Offload small tensors too: only they have computed values on a simulated GPU.
    offload_module._SMALLEST = 1
    weight = torch.linspace(-1, 1, 8 * 16).view(8, 16).cuda().requires_grad_()
    x = torch.linspace(-2, 2, 8 * 8).view(8, 8).cuda()

    def cell(y: Any) -> Any:
        a, b = y.unsafe_chunk(2, 1)
        return a.sigmoid_() * b.tanh_().exp()

    def gradients(block: Any) -> Iterator[Any]:
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
        for found, of_step in zip(gradients(plimsoll.offload(budget)), wanted, strict=False):
            assert torch.equal(found, of_step), budget


@on_simulated_gpus()
def test_all_streams_of_a_backward_pass_wait_for_what_returns() -> None:
    offload_module._SMALLEST = 1
    torch.cuda.init()
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    factors = [torch.linspace(0, 1, 64).cuda().requires_grad_() for _ in range(3)]

    def step(budget: int) -> None:
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

    torch.cuda.Event.query = lambda _: False  # copies never seem to have finished
    with Streams():
        # With a budget of 1 byte, tensors return on request; with 1 GiB, ahead of time.
        for budget in (1, 1 << 30):
            for _ in range(4):
                step(budget)


@on_simulated_gpus()
def test_weights_and_frozen_weights_stay() -> None:
    weight = torch.nn.Parameter(torch.randn(2048, 2048, device="cuda"))
    frozen = torch.randn(2048, 2048, device="cuda")
    small = torch.randn(64, 2048, device="cuda", requires_grad=True)
    offload = plimsoll.offload("1MiB")
    for _ in range(3):
        with offload:
            loss = (small @ weight @ frozen @ weight.T.relu()).sum()
        loss.backward()
        # Nothing moves. The weights stay on the GPU, trained or frozen. The result of `relu` stays
        # too, because the backward pass begins with it.
        assert offload.statistics().out_bytes == 0


@on_simulated_gpus()
def test_views_of_one_storage_move_once() -> None:
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


@on_simulated_gpus()
def test_what_reads_only_a_shape_does_not_get_values() -> None:
    """Checks the memory of a language model's loss.

    The input of `nll_loss` has 128 MiB, but the backward pass reads only the input's shape. `x` and
    the result of `log_softmax` have 64 MiB each.
    """
    x = torch.randn(4096, 8192, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    targets = torch.zeros(4096, dtype=torch.long, device="cuda")

    def loss() -> Any:
        return functional.nll_loss(torch.log_softmax(x, -1).float(), targets)

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


@pytest.mark.long
@on_simulated_gpus()
def test_values_come_back_as_they_left() -> None:
    # Offload small tensors too: only they have computed values on a simulated GPU.
    offload_module._SMALLEST = 1
    # plimsoll now assumes that every backward function reads the values of its saved tensors.
    saved_storage._SHAPE_ONLY.clear()

    def train(block: Any, *, twice: bool) -> list[Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 24),
            torch.nn.GELU(),
            torch.nn.LayerNorm(24),
            torch.nn.Linear(24, 16),
            torch.nn.ReLU(inplace=True),
            torch.nn.Linear(16, 8),
        ).cuda()
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
        wanted = train(contextlib.nullcontext(), twice=twice)
        assert wanted[0] > 1
        assert wanted[1].abs().sum() > 0
        base = torch.cuda.memory_allocated()
        for budget in (1, *range(base, base + 40_000, 2000), 1 << 30):
            found = train(plimsoll.offload(budget), twice=twice)
            for a, b in zip(wanted, found, strict=True):
                assert a == b if isinstance(a, float) else torch.equal(a, b)


@on_simulated_gpus("--gpus", "2")
def test_each_gpu_has_the_budget_for_itself() -> None:
    offload = plimsoll.offload("64MiB")

    def run(device: str) -> Any:
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


@on_simulated_gpus()
def test_the_inner_of_nested_blocks_counts() -> None:
    deep = Deep()
    budget = deep.between(0.5)
    with plimsoll.offload("40GiB"):
        for _ in range(3):
            assert deep.step(plimsoll.offload(budget)) <= budget


def ask_for_bad_budgets() -> None:
    budgets: tuple[int | str, ...] = (0, -5, "much", "90GiB")
    for budget in budgets:
        try:
            with plimsoll.offload(budget):
                pass
        except plimsoll.InputError as error:
            print(error)


def test_bad_budgets_are_one_clear_line() -> None:
    out = output_of(ask_for_bad_budgets)
    zero, negative, text, large = out.splitlines()
    assert zero == "a size must be above zero, not 0"
    assert negative == "a size must be above zero, not -5"
    assert text.startswith("not a size: 'much'")
    assert large.startswith("a budget of 90.00 GiB is more than the GPU has: 79.")
