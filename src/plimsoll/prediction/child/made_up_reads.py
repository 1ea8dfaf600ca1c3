"""Says where a program read values that plimsoll had made up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.prediction.assumed import MADE_UP_READS
from plimsoll.prediction.child.script_ending import line_of_stack
from plimsoll.recordings.analysis.lines import NO_LINE

if TYPE_CHECKING:
    from plimsoll.torch.simulated.simulation import Simulation

_UNKNOWN_LINE = "a line that is not known"


@dataclass(frozen=True)
class MadeUpReads:
    """The places at which a process read values that plimsoll had made up.

    Attributes:
        lines: The program's lines, in the order of their first reads.
        are_all_computed: Whether plimsoll computes all values that it can.
    """

    lines: tuple[str, ...]
    are_all_computed: bool

    @staticmethod
    def of(simulation: Simulation) -> MadeUpReads:
        """Returns the places in this process so far, from the assumptions of the simulation."""
        lines: dict[str, None] = {}
        for assumption in simulation.library.assumptions():
            if simulation.library.name(assumption.what) in MADE_UP_READS:
                line = line_of_stack(assumption.stack) if assumption.stack else NO_LINE
                lines[_UNKNOWN_LINE if line == NO_LINE else line] = None
        return MadeUpReads(tuple(lines), simulation.setup.values == "real")

    def text(self) -> str | None:
        """Returns a sentence for people; None if no made-up value was read."""
        if not self.lines:
            return None
        first, *others = self.lines
        text = f"{first} reads a value that plimsoll made up instead of computing it"
        if others:
            text = (
                f"{len(self.lines)} places read values that plimsoll made up instead of computing "
                f"them, first {first}"
            )
        those = "them" if others else "it"
        if self.are_all_computed:
            return f"{text}; plimsoll cannot compute {those}"
        return f"{text}; --values real computes {those}"
