"""Tests that the peak is a range if a workspace was not measured, or frees wait for streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import plimsoll
from plimsoll.prediction.assumed import FREE_LATER, WORKSPACES
from tests.simulated import on_simulated_gpus, output_of

if TYPE_CHECKING:
    from pathlib import Path

    from plimsoll.prediction.results import Prediction

torch = pytest.importorskip("torch")

NETWORK = """
import torch
torch.backends.cudnn.SETTING
net = torch.nn.Sequential(
    torch.nn.Conv2d(3, 64, 7, 2, 3), torch.nn.MaxPool2d(3, 2, 1), torch.nn.Conv2d(64, 64, 3, 1, 1)
).cuda()
for _ in range(2):
    net(torch.randn(SHAPE, device="cuda")).sum().backward()
"""
MEASURED = (32, 3, 224, 224)  # ResNet's input, which is in the table of measured convolutions
OTHER = (27, 3, 331, 331)


def found(folder: Path, shape: tuple[int, ...], gpu: str, setting: str = "enabled") -> Prediction:
    script = folder / "script.py"
    script.write_text(NETWORK.replace("SHAPE", str(shape)).replace("SETTING", setting))
    return plimsoll.predict(script, gpu=gpu)


def reasons(prediction: Prediction) -> set[str]:
    return {assumed.what for assumed in prediction.assumptions} & set(WORKSPACES)


def test_measured_convolutions_have_one_figure(tmp_path: Path) -> None:
    prediction = found(tmp_path, MEASURED, "H100")
    assert prediction.peak_allocated_range_bytes is None
    assert prediction.peak_reserved_range_bytes is None
    assert not reasons(prediction)


@pytest.mark.parametrize(
    ("shape", "gpu", "setting", "place"),
    [
        (OTHER, "H100", "enabled", 0),
        (MEASURED, "H100", "deterministic = True", 0),
        (MEASURED, "H100", "allow_tf32 = False", 0),
        (MEASURED, "A100-40GB", "enabled", 1),
        (MEASURED, "H100", "benchmark = True", 2),
    ],
)
def test_others_have_a_range_and_its_reason(
    tmp_path: Path, shape: tuple[int, ...], gpu: str, setting: str, place: int
) -> None:
    prediction = found(tmp_path, shape, gpu, setting)
    assert WORKSPACES[place] in reasons(prediction)
    for peak, bounds in [
        (prediction.peak_allocated_bytes, prediction.peak_allocated_range_bytes),
        (prediction.peak_reserved_bytes, prediction.peak_reserved_range_bytes),
    ]:
        assert bounds is not None
        assert bounds[0] <= peak <= bounds[1]
    assert prediction.peak_reserved_range_bytes is not None
    least, most = prediction.peak_reserved_range_bytes
    assert least < most
    assert ", depending on cuDNN's workspaces)" in str(prediction)


PADDINGS = """
import torch
form = {"dtype": torch.bfloat16, "memory_format": torch.channels_last}
x = torch.randn(8, 64, 56, 56, device="cuda").to(**form)
for padding in ORDER:
    torch.nn.Conv2d(64, 64, 3, padding=padding).cuda().to(**form)(x).sum().backward()
"""


@pytest.mark.parametrize(("order", "unmeasured"), [([1], 0), ([1, 0], 2), ([0, 1], 2)])
def test_of_two_paddings_only_the_measured_one_has_one_figure(
    order: list[int], unmeasured: int, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(PADDINGS.replace("ORDER", str(order)))
    prediction = plimsoll.predict(script, gpu="H200")
    assert len([one for one in prediction.assumptions if one.what in WORKSPACES]) == unmeasured
    assert (prediction.peak_allocated_range_bytes is None) == (not unmeasured)


GROUPS = """
import torch
x = torch.zeros(3, 30, 60, 92, 76, device="cuda", dtype=torch.bfloat16)
with torch.no_grad():
    torch.nn.Conv3d(30, 30, 3, padding=1, groups=6, device="cuda", dtype=torch.bfloat16)(x)
"""


def test_the_range_of_grouped_convolutions_has_room_for_padded_groups(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(GROUPS)
    bounds = plimsoll.predict(script, gpu="H200").peak_allocated_range_bytes
    assert bounds is not None
    operands = 2 * 3 * 30 * 60 * 92 * 76 * 2
    assert bounds[0] < operands + 241664403 < bounds[1]  # the workspace as an H200 takes it


def test_a_range_is_the_same_each_time(tmp_path: Path) -> None:
    first, second = (found(tmp_path, OTHER, "L4") for _ in range(2))
    assert first.peak_reserved_range_bytes == second.peak_reserved_range_bytes
    assert first.peak_allocated_range_bytes == second.peak_allocated_range_bytes


@on_simulated_gpus(gpu="A100-40GB")
def test_a_search_of_few_plans_that_keeps_the_cache() -> None:
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = 3
    torch._C._cudnn_set_conv_benchmark_empty_cache(False)
    torch.ones(64 << 20, dtype=torch.uint8, device="cuda")
    torch.nn.Conv2d(3, 8, 3).cuda()(torch.randn(1, 3, 32, 32, device="cuda"))
    assert torch.cuda.memory_reserved() >= 64 << 20
    assert torch.backends.cudnn.benchmark_limit == 3


@pytest.mark.parametrize(("gpu", "workspace"), [("H200", 1245456), ("H100", 1048848)])
def test_a_workspace_is_that_of_the_card_on_which_it_was_measured(gpu: str, workspace: int) -> None:
    assert int(output_of(_weight_gradient, gpu=gpu)) == workspace


def _weight_gradient() -> None:
    settings: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    layer = torch.nn.Conv2d(64, 256, 1, bias=False, **settings).to(
        memory_format=torch.channels_last
    )
    image = torch.zeros(8, 64, 56, 56, **settings).to(memory_format=torch.channels_last)
    result = layer(image)
    gradient = torch.zeros_like(result)
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    torch.cuda.reset_peak_memory_stats()
    result.backward(gradient)
    peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    print(peak - before - layer.weight.nbytes)


FREED_AT_ONCE = """
import torch
images = torch.randn(21, 3, 36, 36, device="cuda")
weight = torch.randn(13209, 3, 5, 5, device="cuda")
gradient = torch.empty(21, 13209, 36, 36, device="cuda")
torch.ops.aten.convolution_backward(
    gradient, images, weight, [0], [1, 1], [2, 2], [1, 1], False, [0, 0], 1, [False, True, False]
)
del gradient
torch.empty(1, device="cuda")
"""


def test_memory_that_is_estimated_as_none_may_be_taken_before_the_next_free(tmp_path: Path) -> None:
    # An H200 took a workspace of 1,465,170,768 bytes for this weight gradient.
    script = tmp_path / "script.py"
    script.write_text(FREED_AT_ONCE)
    bounds = plimsoll.predict(script, gpu="H200").peak_allocated_range_bytes
    assert bounds is not None
    assert bounds[1] >= 21 * 13209 * 36 * 36 * 4 + 1_465_170_768


COPIES = """
import torch
copies = torch.cuda.Stream()
weight = torch.randn(8192, 8192, device="cuda")
for _ in range(8):
    with torch.cuda.stream(copies):
        batch = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.current_stream().wait_stream(copies)
    for _ in range(4):
        weight @ weight
    batch.record_stream(torch.cuda.current_stream())
    del batch
torch.cuda.synchronize()
torch.empty(1, device="cuda")
"""


def test_frees_that_wait_for_another_stream_give_a_range(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(COPIES)
    prediction = plimsoll.predict(script, gpu="H200")
    bounds = prediction.peak_reserved_range_bytes
    assert bounds is not None
    assert bounds[0] < bounds[1]
    assert FREE_LATER in {one.what for one in prediction.assumptions}
    assert "depending on the host's pace" in str(prediction)


def gradient_of_weight(batch: int, channels: int, out_channels: int, *sides: int) -> int:
    """Returns the peak of the bytes that a backward pass takes for a convolution's weight."""
    images = torch.randn(batch, channels, *sides, device="cuda")
    result = torch.nn.Conv2d(channels, out_channels, 3, padding=1, bias=False).cuda()(images)
    gradient = torch.ones_like(result)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result.backward(gradient)
    return int(torch.cuda.max_memory_allocated() - before)


@on_simulated_gpus(gpu="H200")
def test_winograds_workspace_follows_from_the_sizes() -> None:
    weight = 256 * 82 * 9 * 4
    transformed = 6 * 6 * 4 * (2 * 100 * (256 + 82) + 256 * 82)
    assert gradient_of_weight(2, 256, 82, 40, 40) == sum(
        -(-size // 512) * 512 for size in (weight, transformed)
    )


def test_the_range_has_room_for_winograds_algorithm(tmp_path: Path) -> None:
    # A convolution of torchvision's RAFT. Its workspace was recorded on an H200.
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "images = torch.randn(3, 242, 37, 47, device='cuda')\n"
        "net = torch.nn.Conv2d(242, 96, 3, padding=1, bias=False).cuda()\n"
        "net(images).sum().backward()\n"
    )
    bounds = plimsoll.predict(script, gpu="H200").peak_allocated_range_bytes
    assert bounds is not None
    operands = 3 * 242 * 37 * 47 * 4 + 2 * 242 * 96 * 9 * 4 + 3 * 96 * 37 * 47 * 4
    assert bounds[1] >= operands + 20_867_328
