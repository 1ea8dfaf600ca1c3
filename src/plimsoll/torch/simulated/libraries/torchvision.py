"""Allocates the memory that torchvision's CUDA kernels take when they call PyTorch's operations.

The functions follow csrc/ops/cuda of torchvision 0.26 to 0.29. Their memory was measured with 0.26.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.libraries.operations import Operation

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_BOXES_PER_BLOCK = 64
_MATCHING = 0.005
_FEW_MATCHES = (
    "plimsoll assumes that one box in 200 matches an object, as before training; in a trained "
    "network more match, which the range covers"
)
_GROUPS = 6
"""The index at which `geometry` has the number of groups.

`geometry` is the tuple of a deformable convolution's integer arguments.
"""
_MOST_IMAGES = 32
"""The most images that a deformable convolution unrolls at a time."""


def nms(boxes: Any, scores: Any, iou_threshold: float) -> Any:
    """Simulates non-maximum suppression: sorts the boxes, compares all pairs, selects boxes.

    How many boxes it returns depends on data.
    """
    import torch

    count = boxes.size(0)
    if count == 0:
        return boxes.new_empty(0, dtype=torch.int64)
    order = scores.sort(stable=True, dim=0, descending=True)[1]
    ordered = boxes.index_select(0, order).contiguous()
    blocks = -(-count // _BOXES_PER_BLOCK)
    overlaps = boxes.new_empty(count * blocks, dtype=torch.int64)
    kept = boxes.new_zeros(count, dtype=torch.bool)
    if torch.ops.plimsoll.is_known(boxes) and torch.ops.plimsoll.is_known(scores):
        falling = torch.arange(count, 0, -1, dtype=boxes.dtype)
        on_host = torch.ops.torchvision.nms(ordered.cpu(), falling, iou_threshold)
        kept[on_host.to(kept.device)] = True
    else:
        torch.ops.plimsoll.launch([overlaps, kept], overlaps.nbytes, [], [], boxes.dtype)
    return order.masked_select(kept)


def _columns(
    input: Any,  # noqa: A002
    weight: Any,
    grad_or_offset: Any,
) -> tuple[int, int, int, int]:
    """Returns four numbers that describe how a convolution unrolls its images (im2col).

    A loop unrolls some images at a time into a matrix. The first two numbers say how many images
    an iteration unrolls, and how many iterations there are. The other two say how many rows the
    matrix has, and how many columns it has for each image.
    """
    batch = input.size(0)
    images = next(n for n in range(min(batch, _MOST_IMAGES), 0, -1) if batch % n == 0)
    rows = input.size(1) * weight.size(2) * weight.size(3)
    return images, batch // images, rows, grad_or_offset.size(2) * grad_or_offset.size(3)


def deform_conv2d(
    input: Any,  # noqa: A002
    weight: Any,
    offset: Any,
    mask: Any,
    bias: Any,
    *geometry: int,
) -> Any:
    """Simulates a deformable convolution.

    It unrolls some images at a time, and multiplies the unrolled images by the weights.
    """
    import torch

    groups = geometry[_GROUPS]
    input, weight, offset, mask, bias = (  # noqa: A001
        tensor.contiguous() for tensor in (input, weight, offset, mask, bias)
    )
    batch, channels = input.size(0), weight.size(0)
    height, width = offset.size(2), offset.size(3)
    out = input.new_zeros(batch, channels, height, width)
    if batch == 0:
        return out
    images, times, rows, pixels = _columns(input, weight, offset)
    buffer = input.new_zeros(times, groups, channels // groups, images * height * width)
    columns = input.new_zeros(groups, rows // groups, images * pixels)
    filters = weight.view(groups, channels // groups, -1)
    for turn in range(times):
        torch.ops.plimsoll.launch([columns], columns.nbytes, [], [], columns.dtype)
        for group in range(groups):
            buffer[turn][group].addmm_(filters[group], columns[group])
    out.view(times, images, channels, height, width).copy_(
        buffer.view(times, channels, images, height, width).transpose(1, 2)
    )
    return out + bias.view(1, channels, 1, 1)


def deform_conv2d_backward(
    grad: Any,
    input: Any,  # noqa: A002
    weight: Any,
    offset: Any,
    mask: Any,
    bias: Any,
    *geometry: int,
) -> Any:
    """Simulates the backward pass: first the gradients of the inputs, then of the parameters."""
    import torch

    groups = geometry[_GROUPS]
    grad, input, weight, offset, mask, bias = (  # noqa: A001
        tensor.contiguous() for tensor in (grad, input, weight, offset, mask, bias)
    )
    made = [tensor.new_zeros(tensor.shape) for tensor in (input, offset, mask)]
    channels = weight.size(0)
    images, times, rows, pixels = _columns(input, weight, grad)
    filters = weight.view(groups, channels // groups, -1)

    def by_group(kept: Any) -> Any:
        shape = (times, images, groups, channels // groups, *grad.shape[2:])
        return kept.view(shape).permute(0, 2, 3, 1, 4, 5)

    def inputs() -> None:
        columns = input.new_empty(groups, rows // groups, images * pixels)
        for turn in range(times):
            columns.zero_()
            for group in range(groups):
                of = by_group(grad)[turn][group].flatten(1)
                columns[group].addmm_(filters[group].t(), of)
                del of
            torch.ops.plimsoll.launch(made, 2 * columns.nbytes, [], [], columns.dtype)

    def parameters() -> Any:
        found = weight.new_zeros(weight.shape)
        whole = by_group(grad).contiguous()
        columns = input.new_empty(groups, rows // groups, images * pixels)
        of = found.view(groups, channels // groups, -1)
        for turn in range(times):
            torch.ops.plimsoll.launch([columns], columns.nbytes, [], [], columns.dtype)
            for group in range(groups):
                of[group].addmm_(whole[turn][group].flatten(1), columns[group].t())
        return found

    inputs()
    grad_weight = parameters()
    sums = grad.sum((0, 2, 3))
    return made[0], grad_weight, made[1], made[2], torch.ones_like(bias) * sums


def expect_few_matches(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads `torchvision.models.detection._utils`, and lets few boxes match an object.

    Data decides how many boxes match. If plimsoll does not know the data, it would by default let
    half of the boxes match. In a real network, far fewer boxes match.
    """
    execute()
    match = module.Matcher.__call__

    def call(self: Any, quality: Any) -> Any:
        import torch

        matches = match(self, quality)
        if matches.is_cuda and not torch.ops.plimsoll.is_known(matches):
            torch.ops.plimsoll.mostly(matches, self.BELOW_LOW_THRESHOLD, 1 - _MATCHING)
            torch.ops.plimsoll.assume("torchvision's Matcher", _FEW_MATCHES)
        return matches

    module.Matcher.__call__ = call


def _copies(*places: int) -> Operation:
    """Returns an `Operation` that copies operands which are not contiguous.

    Args:
        places: The indices of the operands that it may copy.
    """

    def workspace(*args: Any) -> int:
        return sum(args[i].nbytes for i in places if not args[i].is_contiguous())

    return Operation(workspace=workspace)


KERNELS: dict[str, Operation | Callable[..., Any]] = {
    "torchvision::nms": nms,
    "torchvision::deform_conv2d": deform_conv2d,
    "torchvision::_deform_conv2d_backward": deform_conv2d_backward,
    "torchvision::roi_align": _copies(0, 1),
    "torchvision::_roi_align_backward": _copies(1),
    "torchvision::roi_pool": _copies(0, 1),
    "torchvision::_roi_pool_backward": _copies(1),
    "torchvision::ps_roi_align": _copies(0, 1),
    "torchvision::_ps_roi_align_backward": _copies(0, 1),
    "torchvision::ps_roi_pool": _copies(0, 1),
    "torchvision::_ps_roi_pool_backward": _copies(0, 1),
}
