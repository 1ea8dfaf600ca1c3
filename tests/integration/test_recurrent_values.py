"""Tests that recurrent layers and cells on simulated GPUs have right values or bounds."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.simulated import on_simulated_gpus

torch = pytest.importorskip("torch")
nn = torch.nn

KINDS = ("RNN", "LSTM", "GRU")


def numbers(*shape: int, seed: int = 1) -> Any:
    """Draws normally distributed numbers on the CPU; tests copy the same numbers to each device."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def filled(module: Any) -> Any:
    """Sets a module's weights to random numbers, the same on every device. Returns the module."""
    with torch.no_grad():
        for place, parameter in enumerate(module.parameters()):
            parameter.copy_(0.3 * numbers(*parameter.shape, seed=place))
    return module


def tensors(value: Any) -> list[Any]:
    """Returns all tensors within a value."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for each in value for tensor in tensors(each)]


def run_layer(module: Any, device: str, *, is_packed: bool, has_state: bool) -> list[Any]:
    """Runs a layer forward and backward. Returns the outputs, last states and all gradients."""
    module = module.to(device)
    sequences = numbers(3, 5, 3).to(device).requires_grad_()
    inputs = sequences
    if is_packed:
        inputs = nn.utils.rnn.pack_padded_sequence(
            sequences, torch.tensor([5, 2, 4]), batch_first=module.batch_first, enforce_sorted=False
        )
    batch = 3 if module.batch_first else 5
    count = module.num_layers * (2 if module.bidirectional else 1)
    width = getattr(module, "proj_size", 0) or module.hidden_size
    states = [numbers(count, batch, width).to(device).requires_grad_()]
    if isinstance(module, nn.LSTM):
        states.append(numbers(count, batch, module.hidden_size).to(device).requires_grad_())
    state = (tuple(states) if isinstance(module, nn.LSTM) else states[0]) if has_state else None
    output, last = module(inputs, state)
    found = tensors([output[0] if is_packed else output, last])
    sum(each.sin().sum() for each in found).backward()
    leaves = [sequences, *module.parameters(), *(states if has_state else [])]
    return [*found, *(leaf.grad for leaf in leaves)]


def compare(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@on_simulated_gpus()
def test_a_small_layer_computes_what_the_cpu_does(kind: str) -> None:
    choices = itertools.product((1, 2), (False, True), (False, True), (False, True))
    for layers, both, batch_first, bias in choices:
        module = filled(
            getattr(nn, kind)(3, 4, layers, bidirectional=both, batch_first=batch_first, bias=bias)
        )
        for is_packed, has_state in itertools.product((False, batch_first), (False, True)):
            how = {"is_packed": is_packed, "has_state": has_state}
            module.zero_grad()
            expected = run_layer(module, "cpu", **how)
            module.zero_grad()
            compare(run_layer(module, "cuda", **how), expected)


@on_simulated_gpus()
def test_projections_and_rectified_layers_do_too() -> None:
    for kind, more in (
        (nn.LSTM, {"proj_size": 2, "bidirectional": True}),
        (nn.RNN, {"nonlinearity": "relu"}),
    ):
        for is_packed in (False, True):
            how = {"is_packed": is_packed, "has_state": True}
            modules = [filled(kind(3, 4, 2, batch_first=True, **more)) for _ in range(2)]
            expected = run_layer(modules[0], "cpu", **how)
            compare(run_layer(modules[1], "cuda", **how), expected)


@pytest.mark.parametrize("kind", ["RNNCell", "LSTMCell", "GRUCell"])
@on_simulated_gpus()
def test_a_cell_computes_what_the_cpu_does(kind: str) -> None:
    def run(device: str) -> list[Any]:
        cell = filled(getattr(nn, kind)(3, 4)).to(device)
        inputs = numbers(2, 3).to(device).requires_grad_()
        state: Any = numbers(2, 4).to(device).requires_grad_()
        first = state
        if kind == "LSTMCell":
            state = (state, state.cos())
        for _ in range(3):
            state = cell(inputs, state)
        found = tensors(state)
        sum(each.sin().sum() for each in found).backward()
        return [*found, inputs.grad, first.grad, *(each.grad for each in cell.parameters())]

    compare(run("cuda"), run("cpu"))


@on_simulated_gpus()
def test_training_takes_the_same_steps() -> None:
    def run(device: str) -> list[float]:
        torch.manual_seed(0)
        module = filled(nn.LSTM(3, 4, 2, batch_first=True)).to(device)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
        losses = []
        for _ in range(12):
            loss = (module(numbers(2, 5, 3).to(device))[0] - 0.5).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    assert run("cuda") == pytest.approx(run("cpu"), rel=1e-4)


@on_simulated_gpus("--values", "none")
def test_what_is_not_computed_lies_within_its_bounds() -> None:
    steps, x = 7, torch.randn(7, 512, 1024, device="cuda")
    for kind in KINDS:
        output, state = getattr(nn, kind)(1024, 2048).cuda()(x)
        hidden = state[0] if kind == "LSTM" else state
        for each in (output, hidden):
            assert not (each.abs() > 1).any()
        if kind == "LSTM":
            assert not (state[1].abs() > steps).any()
            assert (state[1].abs() > 1).any()
    rectified, _ = nn.RNN(1024, 2048, nonlinearity="relu").cuda()(x)
    assert not (rectified < 0).any()
    assert (rectified > 1).any()
    hidden, cell = nn.LSTMCell(1024, 2048).cuda()(x[0])
    assert not (hidden.abs() > 1).any()
    assert not (cell.abs() > 1).any()
    assert not (nn.GRUCell(1024, 2048).cuda()(x[0]).abs() > 1).any()
