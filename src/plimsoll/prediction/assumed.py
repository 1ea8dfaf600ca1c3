"""The assumptions of simulations, with the texts that identify some of them."""

from __future__ import annotations

from dataclasses import dataclass

LETS_GO_LATER = "when it lets go of a collective's tensors hangs on the host's pace"
"""The assumption about NCCL's watchdog: kLetGoLater in collectives/group.cpp."""
FREE_LATER = "when blocks that NCCL used are free again hangs on the host's pace"
"""Assumed if another pace of the host changes the reserved memory."""
ANY_ADDRESSES = "which of equally large free blocks is taken hangs on the driver's addresses"
"""Assumed if another order of addresses changes the reserved memory."""
READS_UNKNOWN = "the host read values that nobody knows"
READS_RANDOM = "the host read random numbers, of another generator"
"""The assumptions about values that a script reads: kReads… in the simulated GPU's runtime.h."""
FETCHED = "fetched from the hub into its cache, without weights, as it was not there"
"""The assumption about the description of a model or of a data set."""
PACE = "the host's pace"
ADDRESSES = "the driver's addresses"
SIZES_BY_DATA = (
    "its size depends on values that nobody knows",
    "its size depends on random numbers, of another generator",
)
"""The assumptions about sizes that depend on data: kSizeOf… in the simulated GPU's runtime.h."""
WORKSPACES = (
    "its workspaces are those of convolutions like it: it was not measured on an H100 itself",
    "its workspaces are those of an H100: cuDNN's choice was measured on no card like this one",
    "cudnn.benchmark keeps the plan that was fastest, which differs from run to run",
)
"""The assumptions about cuDNN's workspaces, from the simulated GPU's rules/convolution.cpp."""
DECIDES = {
    **dict.fromkeys(SIZES_BY_DATA, "what the data is like"),
    **dict.fromkeys(WORKSPACES, "cuDNN's workspaces"),
    LETS_GO_LATER: PACE,
    FREE_LATER: PACE,
    ANY_ADDRESSES: ADDRESSES,
}
"""The assumptions that make a peak a range, each with the cause of its variation."""
NEEDS_TRIALS = (*SIZES_BY_DATA, LETS_GO_LATER)
"""The assumptions whose range only further trials can find."""
EXTRAPOLATED_NCCL = (
    "extrapolated: measured were up to four ranks on H100s and two on H200s that NVLink joins"
)
ENDED_BY_SIGNAL = (
    "a signal ended it before it told what it had in live blocks: taken to be all that it took of "
    "the card beside its context"
)
"""The assumption if a signal ended the process with the most memory on the fullest card."""
STARTED_PROGRAM = "a Python program that the script started has no simulated GPUs, and is not seen"
"""The assumption about programs that the script starts without `multiprocessing`."""
WATCHER_FAILED = "plimsoll failed to note this, and the program went on without the notes"
"""The assumption if one of plimsoll's own watchers raised an error."""


@dataclass(frozen=True)
class Assumed:
    """A fact that the simulation cannot know and assumed.

    Attributes:
        what: The assumption.
        operation: PyTorch's name of the operation, or "".
        line: The program's line that called it first, or None.
        count: The number of calls.
        bytes: The estimated size of memory that is not counted; None if all is counted. If a kernel
            allocates memory by an unknown rule, the estimate is the size of the operands and
            results of the largest call.
    """

    what: str
    operation: str
    line: str | None
    count: int
    bytes: int | None = None
