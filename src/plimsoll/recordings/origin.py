"""What plimsoll knows of a request that its call stack does not show: a frame of its own says it.

PyTorch's autograd threads have no Python frames, a simulated backward pass shows the stack of the
forward operation, and neither says whether autograd was recording. So plimsoll puts one frame more
at the inner end of each stack that it records. Any reader of stacks shows it, and every format of
recordings keeps it.
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


@dataclass(frozen=True)
class Origin:
    """The origin of a request for memory.

    Attributes:
        phase: The pass that asked, one of `PHASES`; outside the backward pass all is "forward".
        keeps_graph: Whether autograd recorded operations.
        role: The use that the operation had for the memory, one of `ROLES`; None where that is
            not known, as on a real GPU. An `input` came from the host.
    """

    phase: str
    keeps_graph: bool
    role: str | None = None

    def frame(self) -> Frame:
        """Returns the frame that says so."""
        said = [f"{self.phase} pass", *filter(None, [self.role])]
        return _FILE, 0, ", ".join([*said, _GRAPH] if self.keeps_graph else said)


def origin_of(frames: Sequence[Frame]) -> Origin | None:
    """Returns the origin that the innermost frame of a stack says, if plimsoll recorded the stack.

    A frame with other words, as a damaged or a later file may have it, counts as none.
    """
    if not frames or frames[0][0] != _FILE:
        return None
    said = frames[0][2].split(", ")
    keeps_graph = said[-1] == _GRAPH
    phase, *roles = said[:-1] if keeps_graph else said
    phase = phase.removesuffix(" pass")
    if phase not in PHASES or len(roles) > 1 or not {*roles} <= {*ROLES}:
        return None
    return Origin(phase, keeps_graph, roles[0] if roles else None)
