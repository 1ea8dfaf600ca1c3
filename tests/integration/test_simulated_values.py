"""Tests the values of tensors on simulated GPUs.

plimsoll computes values that are cheap to compute. For other values it keeps bounds. When the
program reads such a value, plimsoll draws a number within the bounds.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.simulated import on_simulated_gpus, output_of

torch = pytest.importorskip("torch")

MANY = (30_000, 10_000)  # a shape with too many elements for plimsoll to compute


# --- computed values -----------------------------------------------------------------------------


@on_simulated_gpus()
def test_a_small_solver_converges_as_on_a_gpu() -> None:
    a = torch.randn(200, 200, device="cuda")
    a = a @ a.T / 200 + torch.eye(200, device="cuda")
    b = torch.ones(200, device="cuda")
    x = torch.zeros(200, device="cuda")
    r = b.clone()
    p = r.clone()
    steps = 0
    while r.norm() > 1e-4:  # the method of conjugate gradients
        alpha = r @ r / (p @ a @ p)
        x += alpha * p
        new = r - alpha * (a @ p)
        p = new + (new @ new) / (r @ r) * p
        r = new
        steps += 1
    assert 5 < steps < 100
    assert torch.allclose(a @ x, b, atol=1e-3)
    assert torch.linalg.norm(a.cpu() @ x.cpu() - b.cpu()) < 1e-3


@on_simulated_gpus()
def test_a_toy_training_run_learns() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1), torch.nn.Sigmoid()
    ).cuda()
    x = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]], device="cuda")
    y = torch.tensor([[0.0], [1], [1], [0]], device="cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(200):
        loss = torch.nn.functional.binary_cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
    assert (model(x) > 0.5).flatten().tolist() == [False, True, True, False]


@on_simulated_gpus()
def test_clusters_are_found() -> None:
    torch.manual_seed(1)
    centers = torch.tensor([[0.0, 0], [10, 0], [0, 10]], device="cuda")
    x = (centers[:, None] + torch.randn(3, 500, 2, device="cuda")).reshape(-1, 2)
    found = x[[0, 500, 1000]].clone()
    for _ in range(100):
        nearest = torch.cdist(x, found).argmin(1)
        new = torch.stack([x[nearest == k].mean(0) for k in range(3)])
        if torch.allclose(new, found):
            break
        found = new
    assert torch.bincount(nearest).tolist() == [500, 500, 500]
    assert torch.allclose(found, centers, atol=0.3)


@on_simulated_gpus("--values", "none")
def test_lengths_are_known_whatever_is_computed() -> None:
    lengths = torch.tensor([3, 9, 4]).cuda()
    assert lengths.max().item() == 9
    assert lengths.cumsum(0).tolist() == [3, 12, 16]


@on_simulated_gpus()
def test_a_constant_of_any_size_is_known() -> None:
    zeros = torch.zeros(MANY, device="cuda")
    ones = torch.ones_like(zeros)
    assert zeros.sum().item() == 0
    assert ones[17, 4].item() == 1
    assert (zeros + 2 * ones).mean().item() == 2
    assert not (zeros != 0).any()


@on_simulated_gpus()
def test_a_part_of_a_flat_buffer_keeps_its_values() -> None:
    flat = torch.empty(300_000_000, device="cuda")
    flat[100:104] = 7
    flat[200:300] = torch.randn(30_000_000, device="cuda")[:100]
    assert flat[100:104].tolist() == [7, 7, 7, 7]
    assert flat[102].item() == 7
    assert flat[99].item() != 7
    assert math.isfinite(flat[250].item())


# --- random numbers of a seed --------------------------------------------------------------------


@on_simulated_gpus(gpu="H200")
def test_random_numbers_of_a_seed_are_those_of_a_gpu() -> None:
    torch.manual_seed(0)  # Philox's first block for the key 0 begins with 0x6627e8d5
    assert torch.rand(1, device="cuda").item() == pytest.approx(0x6627E8D5 / 2**32)
    torch.manual_seed(1234567)  # the values below were drawn on an H200, with PyTorch 2.11
    assert torch.rand(5, device="cuda").tolist() == [
        0.8587404489517212, 0.3982400894165039, 0.14926669001579285, 0.9800865054130554,
        0.7025392055511475,
    ]  # fmt: skip
    normal = [1.6325087547302246, 0.6264294385910034, 0.6896957159042358, -0.4629741609096527]
    assert torch.randn(4, device="cuda").tolist() == pytest.approx(normal, rel=1e-5)
    drawn = torch.randint(16, 513, (6,), device="cuda")
    assert drawn.tolist() == [433, 356, 271, 309, 79, 21]
    tossed = torch.bernoulli(torch.full((8,), 0.8, device="cuda"))
    assert tossed.tolist() == [0, 1, 1, 0, 1, 1, 0, 1]
    torch.randperm(1000, device="cuda")
    offset = torch.cuda.get_rng_state()[8:16].view(torch.int64).item()
    assert offset == 4 + 4 + 4 + 12 + 1004


@on_simulated_gpus()
def test_a_seed_gives_the_same_numbers_again() -> None:
    generator = torch.Generator("cuda").manual_seed(5)
    first = torch.rand(10, device="cuda", generator=generator)
    generator.manual_seed(5)
    assert torch.equal(first, torch.rand(10, device="cuda", generator=generator))
    assert not torch.equal(first, torch.rand(10, device="cuda", generator=generator))


# --- values that are described, not computed -----------------------------------------------------


@on_simulated_gpus()
def test_unknown_numbers_are_finite_and_equal_to_themselves() -> None:
    x = torch.randn(MANY, device="cuda") @ torch.randn(10_000, 10_000, device="cuda")
    assert torch.isfinite(x).all()
    assert not x.isnan().logical_or(x.isinf()).any()
    assert (x == x).all()
    assert not (x != x).any()
    total = float(x.float().sum())
    assert total not in (float("inf"), -float("inf"))
    assert total == total
    assert torch.equal(x, x.clone())


@on_simulated_gpus()
def test_two_reads_of_an_element_agree() -> None:
    x = torch.randn(MANY, device="cuda").exp().matmul(torch.randn(10_000, 500, device="cuda"))
    assert x[7, 3].item() == x[7, 3].item() == x.clone()[7, 3].item() == x[:, 3][7].item()
    assert x[7, :5].tolist() == x[7].cpu()[:5].tolist()
    loss = x.square().mean()
    assert (loss / 4).item() == pytest.approx(loss.item() / 4)


@on_simulated_gpus()
def test_probabilities_sum_to_one() -> None:
    p = torch.softmax(torch.randn(MANY, device="cuda"), -1)
    assert torch.allclose(p.sum(-1), torch.ones(MANY[0], device="cuda"))
    assert 0 <= p[3, 4].item() <= 1
    assert (p >= 0).all()
    assert not (p > 1).any()


@on_simulated_gpus()
def test_choices_are_spread_over_their_range() -> None:
    logits = torch.randn(MANY, device="cuda") @ torch.randn(10_000, 64, device="cuda")
    chosen = logits.argmax(-1)
    counts = torch.bincount(chosen, minlength=64)
    assert counts.sum().item() == MANY[0]
    assert counts.min().item() > 0.8 * MANY[0] / 64
    _, places = logits.topk(4, -1)
    # topk chooses four different places in each row
    assert (places.sort(-1).values.diff(dim=-1) > 0).all()
    assert places.max().item() == 63
    assert sorted(logits[:2].argsort(-1)[0].tolist()) == list(range(64))
    sampled = torch.multinomial(logits.softmax(-1), 3)
    assert sampled.shape == (MANY[0], 3)
    assert 0 <= sampled.min().item() <= sampled.max().item() <= 63


@on_simulated_gpus("--unknown", "most")
def test_choices_of_a_row_differ_where_most_rows_choose_the_first() -> None:
    logits = torch.randn(MANY, device="cuda") @ torch.randn(10_000, 8, device="cuda")
    _, places = logits.topk(7, -1)
    assert (places.sort(-1).values.diff(dim=-1) > 0).all()
    for row in logits[:8].argsort(-1).tolist():
        assert sorted(row) == list(range(8))


@on_simulated_gpus()
def test_masks_of_random_numbers_select_their_share() -> None:
    u = torch.rand(MANY, device="cuda")
    z = torch.randn(MANY, device="cuda")
    count = u.numel()
    assert u[u < 0.15].numel() == pytest.approx(0.15 * count, rel=0.01)
    assert torch.nonzero(z > 1)[:, 0].numel() == pytest.approx(0.1587 * count, rel=0.01)
    both = (u < 0.5) & (z > 0)
    assert z[both].numel() == pytest.approx(0.25 * count, rel=0.01)
    tossed = torch.empty(MANY, device="cuda").bernoulli_(0.3).bool()
    assert z[tossed].numel() == pytest.approx(0.3 * count, rel=0.01)
    kinds = torch.randint(0, 8, MANY, device="cuda")
    assert z[kinds == 3].numel() == pytest.approx(count / 8, rel=0.01)


@on_simulated_gpus()
def test_unknown_data_is_taken_to_be_balanced() -> None:
    x = torch.randn(MANY, device="cuda") @ torch.randn(10_000, 100, device="cuda")
    selected = x[x > 0.3]
    assert selected.numel() == pytest.approx(x.numel() / 2, rel=0.02)
    assert (x > 0.3).sum().item() == pytest.approx(x.numel() / 2, rel=0.02)


@pytest.mark.long
@pytest.mark.parametrize(("unknown", "share"), [("most", 1), ("least", 0)])
def test_unknown_data_is_what_is_asked_for(unknown: str, share: int) -> None:
    selects_of_unknown_data(unknown, share)


def selects_of_unknown_data(unknown: str, share: int) -> None:
    """Runs `_select` under one choice of `--unknown`."""
    output_of(_select, "--unknown", unknown, arguments=(share,))


def _select(share: int) -> None:
    x = torch.randn(MANY, device="cuda") @ torch.randn(10_000, 100, device="cuda")
    assert x[x > 0.3].numel() == share * x.numel()


@on_simulated_gpus()
def test_hardly_any_change_is_seen_between_two_logarithms_of_chances() -> None:
    states = torch.randn(MANY, device="cuda")
    policy = torch.nn.Linear(10_000, 6).cuda()
    actions = torch.randint(0, 6, (MANY[0],), device="cuda")
    old = policy(states).log_softmax(-1).gather(1, actions[:, None]).detach()
    new = policy(states).log_softmax(-1).gather(1, actions[:, None])
    ratio = new - old
    divergence = ((ratio.exp() - 1) - ratio).mean()
    assert abs(divergence.item()) < 0.015  # PPO stops an epoch at this divergence


def has_overflown(gradient: Any) -> bool:
    """Returns whether a gradient has overflowed, by the check of DeepSpeed's optimizers."""
    number = gradient.float()
    return bool(number.isnan().logical_or(number.isinf()).float().max().item())


@on_simulated_gpus()
def test_no_gradient_overflows() -> None:
    layer = torch.nn.Linear(20_000, 5_000).cuda().half()
    layer(torch.randn(8, 20_000, device="cuda").half()).sum().backward()
    assert layer.weight.grad is not None
    assert not has_overflown(layer.weight.grad)
    norms = torch.stack([p.grad.norm() for p in layer.parameters() if p.grad is not None])
    total = float(norms.norm())
    assert not math.isinf(total)
    assert total != -1
    clipped = torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0, error_if_nonfinite=True)
    assert clipped.item() > 0


@on_simulated_gpus()
def test_early_stopping_sees_a_loss_that_falls() -> None:
    layer = torch.nn.Linear(10_000, 10_000).cuda()
    x = torch.randn(100, 10_000, device="cuda")
    best, without_progress, epochs = math.inf, 0, 0
    for _ in range(60):
        loss = layer(x).square().mean().item()
        without_progress = 0 if loss < best else without_progress + 1
        best = min(best, loss)
        epochs += 1
        if without_progress >= 20:
            break
    assert epochs == 60


# --- how often a value occurs in a tensor --------------------------------------------------------


@on_simulated_gpus()
def test_zeros_of_activations_are_counted() -> None:
    x = torch.randn(MANY, device="cuda")
    count = x.numel()
    sparse = x.relu()
    assert (sparse == 0).sum().item() == pytest.approx(count / 2, rel=0.01)
    assert (sparse > 0).float().sum().item() == pytest.approx(count / 2, rel=0.01)
    assert sparse.count_nonzero().item() == pytest.approx(count / 2, rel=0.01)
    assert (2 * sparse).nonzero().shape[0] == pytest.approx(count / 2, rel=0.01)
    assert 400 < (sparse[0, :1000] == 0).sum().item() < 600
    dropped = torch.nn.functional.dropout(x, 0.3)
    assert (dropped == 0).sum().item() == pytest.approx(0.3 * count, rel=0.01)
    clamped = x.clamp(max=1)
    assert (clamped == 1).sum().item() == pytest.approx(0.1587 * count, rel=0.01)
    cut = torch.nn.functional.threshold(x, 1, 20)
    assert (cut == 20).sum().item() == pytest.approx(0.8413 * count, rel=0.01)


@on_simulated_gpus()
def test_zeros_of_masks_are_counted() -> None:
    x = torch.randn(MANY, device="cuda")
    u = torch.rand(MANY, device="cuda")
    count = x.numel()
    mask = u < 0.2
    assert (mask.float() == 1).sum().item() == pytest.approx(0.2 * count, rel=0.01)
    assert (x * mask == 0).sum().item() == pytest.approx(0.8 * count, rel=0.01)
    assert (x.masked_fill(mask, -1.0) == -1).sum().item() == pytest.approx(0.2 * count, rel=0.01)
    assert (torch.where(mask, x, 3.0) == 3).sum().item() == pytest.approx(0.8 * count, rel=0.01)
    assert (torch.sign(x) == 1).sum().item() == pytest.approx(0.5 * count, rel=0.01)
    tokens = torch.randint(0, 10, MANY, device="cuda").masked_fill(mask, -100)
    assert (tokens == -100).sum().item() == pytest.approx(0.2 * count, rel=0.01)
    digits = (u * 10).floor()
    assert (digits == 3).sum().item() == pytest.approx(0.1 * count, rel=0.12)
    assert (u * 10).long().max().item() <= 9
    hot = torch.nn.functional.one_hot(torch.randint(0, 8, (MANY[0] * 100,), device="cuda"), 8)
    assert hot.float().sum().item() == pytest.approx(MANY[0] * 100, rel=0.01)


@on_simulated_gpus()
def test_numbers_with_fractions_hardly_ever_hit_one() -> None:
    x = torch.randn(MANY, device="cuda").sin() @ torch.randn(10_000, 500, device="cuda")
    assert (x == 0).sum().item() == 0
    assert x[x == 0].numel() == 0
    assert (x != 0).all()
    assert not (x == 1).any()


@on_simulated_gpus("--unknown", "most")
def test_hardly_any_is_hardly_any_whatever_is_unknown() -> None:
    x = torch.randn(MANY, device="cuda").sin() @ torch.randn(10_000, 500, device="cuda")
    assert (x == 0).sum().item() == 0
    assert x[x == 0].numel() == 0


# --- networks that learn on simulated GPUs -------------------------------------------------------


@pytest.mark.parametrize(("unknown", "share"), [("balanced", 0.5), ("most", 1), ("least", 0)])
def test_numbers_are_hardly_ever_below_a_tolerance_but_probabilities_may_be(
    unknown: str, share: float
) -> None:
    options = ("--values", "none", "--unknown", unknown)
    output_of(_compare_with_tolerances, *options, arguments=(share,))


def _compare_with_tolerances(share: float) -> None:
    size = torch.randn(MANY, device="cuda").matmul(torch.randn(MANY[::-1], device="cuda")).abs()
    assert not (size.max() <= 1e-7).item()
    assert not (size.min() < 1e-11).item()
    assert (size.min() > 1e-11).item()
    assert ((-size).max() < -1e-11).item()
    shares = (torch.randn(MANY, device="cuda") @ torch.randn(10_000, 500, device="cuda")).softmax(1)
    assert shares[shares < 1e-6].numel() == share * shares.numel()
    window = torch.hann_window(1024, device="cuda")
    spectrum = torch.randn(2, 513, 97, dtype=torch.cfloat, device="cuda")
    assert torch.istft(spectrum, 1024, 256, window=window, length=24_576).shape == (2, 24_576)


@pytest.mark.parametrize(("unknown", "kept"), [("most", MANY[0]), ("least", 0)])
def test_how_many_numbers_a_tolerance_keeps_depends_on_the_data(unknown: str, kept: int) -> None:
    output_of(_keep_by_tolerance, "--values", "none", "--unknown", unknown, arguments=(kept,))


def _keep_by_tolerance(kept: int) -> None:
    size = torch.randn(MANY, device="cuda").matmul(torch.randn(MANY[::-1], device="cuda")).abs()
    lengths = size.sum(1)
    assert lengths[lengths > 1e-6].numel() == kept


@on_simulated_gpus("--values", "none")
def test_lbfgs_searches_on_where_gradients_are_unknown() -> None:
    for _ in range(8):
        weight = torch.nn.Parameter(torch.randn(64, 64, device="cuda"))
        optimizer = torch.optim.LBFGS([weight], max_iter=5, history_size=3)

        def loss(weight: Any = weight, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            value = weight.sin().square().mean()
            value.backward()
            return value

        optimizer.step(loss)
        assert optimizer.state[weight]["n_iter"] == 5
        assert len(optimizer.state[weight]["old_dirs"]) == 3
        assert optimizer.param_groups[0]["tolerance_change"] == 1e-9


def rounds_until_learned(model: Any, x: Any, y: Any) -> int:
    """Trains with early stopping, and checks the final loss. Returns the number of rounds."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    best, without_progress, rounds = math.inf, 0, 0
    for _ in range(300):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rounds += 1
        without_progress = 0 if loss.item() < best - 1e-3 else without_progress + 1
        best = min(best, loss.item())
        if without_progress >= 5:
            break
    assert best < 0.1
    assert (model(x).argmax(-1) == y).float().mean().item() > 0.95
    return rounds


@on_simulated_gpus()
def test_a_classifier_with_batch_normalization_learns() -> None:
    torch.manual_seed(0)
    y = torch.arange(64, device="cuda") % 2
    x = torch.randn(64, 3, 6, 6, device="cuda") + y[:, None, None, None]
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
        torch.nn.Flatten(), torch.nn.Linear(128, 2),
    ).cuda()  # fmt: skip
    assert rounds_until_learned(model, x, y) < 300
    assert model[1].running_var.min().item() > 0
    assert torch.allclose(model.eval()(x).cpu(), model.cpu()(x.cpu()), atol=1e-3)


class Attending(torch.nn.Module):  # type: ignore[name-defined,misc]
    """A network: an attention layer, followed by a linear classifier."""

    def __init__(self, size: int, *, is_causal: bool) -> None:
        super().__init__()
        self.of = torch.nn.Linear(size, 3 * size)
        self.out = torch.nn.Linear(size, 2)
        self.is_causal = is_causal

    def forward(self, x: Any) -> Any:
        """Attends with two heads; classifies by the last position."""
        parts = self.of(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        seen = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=self.is_causal)
        return self.out(seen.transpose(1, 2).flatten(2)[:, -1]).float()


@pytest.mark.long
@on_simulated_gpus()
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_classifier_with_attention_learns(is_causal: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 5, 16, device="cuda")
    y = (x[:, 1, 0] > 0).long()
    model = Attending(16, is_causal=is_causal).cuda()
    assert rounds_until_learned(model, x, y) < 300
    assert torch.allclose(model(x).cpu(), model.cpu()(x.cpu()), atol=1e-3)


@on_simulated_gpus()
def test_gradients_of_attention_are_those_of_the_host() -> None:
    torch.manual_seed(0)
    attention = torch.nn.functional.scaled_dot_product_attention
    bias = torch.randn(2, 4, 6, 6)
    for kind in (torch.float, torch.bfloat16):
        heads = [torch.randn(2, 4, 6, 8, dtype=kind, requires_grad=True) for _ in range(3)]
        there = [each.detach().cuda().requires_grad_() for each in heads]
        for mask in (None, bias.to(kind)):
            attention(*heads, attn_mask=mask).square().sum().backward()
            attention(
                *there, attn_mask=None if mask is None else mask.cuda()
            ).square().sum().backward()
        for here, other in zip(heads, there, strict=True):
            assert other.grad is not None
            assert torch.allclose(
                here.grad, other.grad.cpu(), atol=1e-4 if kind == torch.float else 0.2
            )


@on_simulated_gpus()
def test_whole_numbers_stay_whole_in_a_buffer_of_floats() -> None:
    """Stores chosen actions in a float buffer, as a rollout does."""
    logits = torch.randn(MANY, device="cuda")
    kept = torch.zeros(2, MANY[0], device="cuda")
    kept[0] = torch.distributions.Categorical(logits=logits).sample()
    kept[1] = logits.argmax(-1)
    few = kept.flatten()[torch.randint(0, kept.numel(), (100,), device="cuda")]
    assert all(value.is_integer() and 0 <= value < MANY[1] for value in few.tolist())
    torch.distributions.Categorical(logits=logits).log_prob(kept[0])
    assert not all(value.is_integer() for value in (kept[0, :50] * 0.3).tolist())
