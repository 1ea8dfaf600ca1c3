"""Describes the origin of a request, which plimsoll adds as a frame to the request's call stack.

PyTorch's autograd threads have no Python frames, and a simulated backward pass has the stack of the
forward operation. No stack shows whether autograd was recording. So plimsoll adds one frame at the
inner end of each stack that it records. Any tool that shows stacks shows this frame, and every
format of recordings keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.recordings.events import Frame

PHASES = ("forward", "backward")
ROLES = ("output", "temporary", "workspace", "input", "copy")

_FILE = "<plimsoll>"
_GRAPH = "autograd records"
_RESULT = "with grad_fn"


@dataclass(frozen=True)
class Origin:
    """The origin of a request for memory.

    Attributes:
        phase: The pass that requests the memory, one of `PHASES`. Whatever is outside a backward
            pass counts as "forward".
        keeps_graph: Whether autograd was recording operations.
        role: The purpose of the memory in the operation, one of `ROLES`. An `input` is data from
            the host. None if unknown, as on a real GPU.
        has_grad_fn: Whether the memory is for the result of an operation that autograd records.
            False if the role is unknown.
    """

    phase: str
    keeps_graph: bool
    role: str | None = None
    has_grad_fn: bool = False

    @property
    def may_have_grad_fn(self) -> bool:
        """Whether the memory may be for the result of an operation that autograd records."""
        return self.has_grad_fn or (self.role is None and self.keeps_graph)

    def frame(self) -> Frame:
        """Returns the frame that expresses this origin."""
        said = [f"{self.phase} pass", *filter(None, [self.role])]
        said += [_GRAPH] * self.keeps_graph + [_RESULT] * self.has_grad_fn
        return _FILE, 0, ", ".join(said)


def origin_of(frames: Sequence[Frame]) -> Origin | None:
    """Returns the origin in the innermost frame of a stack, if plimsoll recorded the stack.

    Returns None for a frame with unknown words, from a damaged file or a later plimsoll.
    """
    if not frames or frames[0][0] != _FILE:
        return None
    said = frames[0][2].split(", ")
    has_grad_fn = said[-1] == _RESULT
    said = said[: len(said) - has_grad_fn]
    keeps_graph = said[-1:] == [_GRAPH]
    phase, *roles = said[: len(said) - keeps_graph] or [""]
    phase = phase.removesuffix(" pass")
    if phase not in PHASES or len(roles) > 1 or not {*roles} <= {*ROLES}:
        return None
    return Origin(phase, keeps_graph, roles[0] if roles else None, has_grad_fn)
