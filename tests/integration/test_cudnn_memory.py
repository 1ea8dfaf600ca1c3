"""Tests the memory of recurrent layers, normalization and convolutions in cuDNN, as on an H200."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.integration.test_simulated_sums import backward_of, holds, requests_of
from tests.simulated import on_simulated_gpus, output_of

torch = pytest.importorskip("torch")
nn = torch.nn


def packed(lengths: list[int], width: int) -> Any:
    rows = torch.zeros(len(lengths), max(lengths), width, device="cuda", dtype=torch.half)
    return nn.utils.rnn.pack_padded_sequence(
        rows, torch.tensor(lengths), batch_first=True, enforce_sorted=False
    )


def lengths_of(tokens: int, steps: int, batch: int = 26) -> list[int]:
    """Returns lengths whose sum is `tokens` and whose largest is `steps`."""
    rest, more = divmod(tokens - steps, batch - 1)
    return [steps, *(rest + (i < more) for i in range(batch - 1))]


@on_simulated_gpus(gpu="H200")
def test_a_projected_lstm_under_autocast_keeps_half_weights_and_masks() -> None:
    layer = nn.LSTM(
        300, 520, num_layers=3, bidirectional=True, dropout=0.1, proj_size=264, batch_first=True
    ).cuda()
    for tokens, steps, workspace, reserve in [
        (11546, 604, 239258304, 521037504),
        (11541, 586, 239185504, 520690144),
        (11049, 603, 232021984, 498780896),
    ]:
        rows = packed(lengths_of(tokens, steps), 300)
        with torch.autocast("cuda", dtype=torch.half):
            found = requests_of(partial(layer, rows))
        output, cells, last = tokens * 528 * 2, 162240, 82368
        assert holds(found, [19568640, output, last, cells, workspace, reserve]), found


@on_simulated_gpus(gpu="H200")
def test_the_gradients_of_half_weights_come_last_weight_first() -> None:
    layer = nn.GRU(528, 520, num_layers=2, batch_first=True).cuda()
    rows = packed(lengths_of(11546, 604), 528)
    with torch.autocast("cuda", dtype=torch.half):
        output, _ = layer(rows)
    found = backward_of(output.data)
    first, later, bias = 3294720, 3244800, 6240
    assert holds(found, [44220992, 6527040, 44220992, bias, bias, later, later]), found
    assert holds(found, [bias, bias, later, first]), found
    assert {weight.grad.dtype for weight in layer.parameters()} == {torch.float}


@on_simulated_gpus(gpu="H200")
def test_autocast_to_bfloat16_runs_recurrent_layers_in_half_precision() -> None:
    layer = nn.GRU(16, 32).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output, _ = layer(torch.zeros(5, 3, 16, device="cuda"))
    assert output.dtype == torch.half


@on_simulated_gpus(gpu="H200")
def test_the_workspace_of_a_recurrent_layer_grows_with_its_input() -> None:
    # Workspaces on an H200 with PyTorch 2.11, for 11 steps of 70 sequences.
    for kind, width, hidden, layers, two_way, workspace in [
        (nn.GRU, 8, 64, 1, True, 21919680),
        (nn.GRU, 96, 96, 1, False, 14685504),
        (nn.GRU, 100, 96, 2, True, 43776000),
        (nn.GRU, 512, 64, 2, True, 49035072),
        (nn.LSTM, 512, 64, 1, True, 31433536),
        (nn.RNN, 500, 320, 2, True, 66616064),
    ]:
        layer = kind(width, hidden, layers, bidirectional=two_way).cuda()
        rows = torch.zeros(11, 70, width, device="cuda", requires_grad=True)
        assert workspace in requests_of(partial(layer, rows)), (kind, width, hidden)


@on_simulated_gpus(gpu="H200")
def test_a_missing_gradient_of_all_steps_is_zeros_that_are_copied_if_the_batch_is_first() -> None:
    for batch_first, copies in ((True, 2), (False, 1)):
        layer = nn.GRU(40, 96, batch_first=batch_first).cuda()
        _, last = layer(torch.zeros(50, 30, 40, device="cuda"))
        assert backward_of(last).count(50 * 30 * 96 * 4) == copies


def image(*sizes: int, dtype: Any = None) -> Any:
    made = torch.zeros(*sizes, device="cuda", dtype=dtype)
    return made.contiguous(memory_format=torch.channels_last).requires_grad_()


@on_simulated_gpus(gpu="H200")
def test_normalization_in_channels_last_takes_workspaces() -> None:
    for channels, height, width, workspace in [
        (140, 83, 99, 11330896),
        (28, 83, 99, 3777680),
        (44, 42, 50, 966512),
        (420, 21, 25, 1691516),
        (132, 11, 13, 199228),
    ]:
        layer, x = nn.BatchNorm2d(channels).cuda(), image(57, channels, height, width)
        found = requests_of(partial(layer, x))
        assert found[-4:] == [x.nbytes, channels * 4, channels * 4, workspace]
        layer.eval()
        assert requests_of(partial(layer, x)) == [x.nbytes]


@on_simulated_gpus(gpu="H200")
def test_gradients_of_normalization_take_workspaces_and_copy_another_layout() -> None:
    for channels, height, width, workspace in [
        (396, 11, 13, 305724),
        (132, 11, 13, 131628),
        (84, 21, 25, 320552),
    ]:
        x = image(57, channels, height, width)
        output = nn.BatchNorm2d(channels).cuda()(x)
        seed = torch.zeros(x.shape, device="cuda")
        found = requests_of(partial(output.backward, seed))
        assert found == [x.nbytes, x.nbytes, channels * 4, channels * 4, workspace]


def _normalize_half() -> None:
    layer = nn.BatchNorm2d(64).cuda()
    print(requests_of(lambda: layer(image(8, 64, 56, 56, dtype=torch.half))))


def test_normalization_of_other_types_has_an_estimated_workspace() -> None:
    found = output_of(_normalize_half, gpu="H200")
    assert "256, 256, " in found


@on_simulated_gpus(gpu="H200")
def test_a_grouped_convolution_pads_the_channels_of_each_group() -> None:
    for channels, sizes, workspace in [
        (30, (60, 92, 76), 241664403),
        (60, (30, 46, 38), 60493971),
    ]:
        layer = nn.Conv3d(channels, channels, 3, padding=1, groups=6).cuda().bfloat16()
        x = torch.zeros(3, channels, *sizes, device="cuda", dtype=torch.bfloat16)
        found = requests_of(partial(layer, x))
        assert any(0 <= workspace - size < 512 for size in found), found


@on_simulated_gpus(gpu="H200")
def test_gradients_in_another_layout_are_copied() -> None:
    x = torch.zeros(3, 4, 60, 92, 76, device="cuda", requires_grad=True)
    found = requests_of(
        lambda: torch._softmax_backward_data(
            torch.zeros(3, 60, 92, 76, 4, device="cuda").movedim(-1, 1), x.detach(), 1, torch.float
        )
    )
    assert found == [x.nbytes] * 4  # the zeros, the result, the product and its copy

    volume = torch.zeros(3, 6, 30, 46, 38, device="cuda", requires_grad=True)
    larger = nn.functional.interpolate(volume, scale_factor=2, mode="trilinear")
    part = torch.zeros(3, 9, 60, 92, 76, device="cuda")[:, :6]
    found = requests_of(lambda: larger.backward(part))
    assert found == [volume.nbytes, larger.nbytes]
