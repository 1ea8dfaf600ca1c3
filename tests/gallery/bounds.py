"""How close a prediction has to be to what the card took, and which scripts are known to differ."""

from __future__ import annotations

from dataclasses import dataclass

from tests.gallery.figures import Figures
from tests.gallery.results import short


@dataclass(frozen=True)
class Bounds:
    """The largest differences, as parts of what was measured.

    Attributes:
        allocated: Of peak allocated.
        reserved: Of peak reserved.
        why: Why they are others than `CLOSE`.
    """

    allocated: float
    reserved: float
    why: str = ""


CLOSE = Bounds(allocated=0.005, reserved=0.015)
OTHER_VERSION = Bounds(
    allocated=0.01,
    reserved=0.08,
    why="another PyTorch than the measured one: it picks another of several equally large free"
    " blocks, and has other workspaces (docs/versions.md)",
)
_SKIPPED = (
    "the card's scaler skipped the first steps, whose gradients overflowed in fp16, so that the"
    " optimizer's state came later; a prediction is of a healthy run, whose steps are taken"
)
_CONVOLUTIONS = "workspaces of cuDNN for convolutions that nobody has measured (docs/predict.md)"
KNOWN: dict[str, Bounds] = {
    "audio/wav2vec2": Bounds(
        allocated=0.03,
        reserved=0.03,
        why="layers are dropped by random numbers of the host, which are others here",
    ),
    "detection/deeplab_segmentation": Bounds(0.005, 0.025, _CONVOLUTIONS),
    "detection/keypoint_rcnn": Bounds(0.11, 0.185, _CONVOLUTIONS),
    "detection/resnet_classification": Bounds(0.06, 0.03, _SKIPPED),
    "detection/retinanet": Bounds(0.09, 0.015, _SKIPPED),
    "detection/ssd_training": Bounds(0.005, 0.025, _CONVOLUTIONS),
    "detection/yolo_like": Bounds(0.015, 0.015, _CONVOLUTIONS),
    "lightning/fp16_mixed": Bounds(0.03, 0.05, _SKIPPED),
    "monai/unet3d": Bounds(0.005, 0.125, _CONVOLUTIONS),
    "training/checkpointed_accumulated": Bounds(0.005, 0.04, "not understood yet"),
    "training/gan_gradient_penalty": Bounds(0.005, 0.05, _CONVOLUTIONS),
    "solvers/fourier_operator": Bounds(0.11, 0.105, _CONVOLUTIONS),
}
"""Scripts that differ by more under the very PyTorch that was measured, and why."""


def bounds_of(name: str, torch: str, measured_torch: str) -> Bounds:
    """What a prediction under one PyTorch is held to, measured with another or the same."""
    usual = CLOSE if short(torch) == short(measured_torch) else OTHER_VERSION
    known = KNOWN.get(name)
    if known is None:
        return usual
    reserved = max(usual.reserved, known.reserved)
    return Bounds(max(usual.allocated, known.allocated), reserved, known.why)


def holds(found: Figures, measured: Figures, bounds: Bounds = CLOSE) -> bool:
    """Whether both peaks are within the bounds, or within their range where sizes hang on data."""
    pairs = (
        (found.allocated_bytes, found.allocated_range, measured.allocated_bytes, bounds.allocated),
        (found.reserved_bytes, found.reserved_range, measured.reserved_bytes, bounds.reserved),
    )
    return all(
        abs(value - truth) <= bound * truth or (span is not None and span[0] <= truth <= span[1])
        for value, span, truth, bound in pairs
    )
