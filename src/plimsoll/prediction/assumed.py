"""Defines the assumptions of simulations, and texts by which other modules recognize them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

from plimsoll.torch.simulated.library import READS_WITHOUT_CONTENTS

LETS_GO_LATER = "the host's pace decides when a collective releases its tensors"
"""The assumption about when NCCL's watchdog frees tensors.

It is the text of kLetGoLater in collectives/group.cpp.
"""
FREE_LATER = "the host's pace decides when blocks that other streams used are free again"
"""The assumption if reserved memory depends on how far the host runs ahead of other streams."""
ANY_ADDRESSES = "the driver's addresses decide which of equally large free blocks is taken"
"""The assumption for a job if the job's reserved memory depends on the order of addresses."""
READS_UNKNOWN = "plimsoll made up the values that the script reads here, such as a printed loss"
READS_RANDOM = "the random numbers that the script reads here differ from a real GPU's"
COMPUTES_WITHOUT_CONTENTS = (
    "plimsoll keeps no contents of large host tensors, and made up this result of them"
)
MADE_UP_READS = (READS_UNKNOWN, READS_WITHOUT_CONTENTS, COMPUTES_WITHOUT_CONTENTS)
"""The assumptions about made-up values that a script reads, or computes on the host."""
READS = (*MADE_UP_READS, READS_RANDOM)
"""The assumptions about values that a script reads.

They must equal kReads… and kComputesWithoutContents in runtime.h.
"""
TAKEN_AS_FINITE = "the scaler skips no step here, although a new one often skips its first"
"""The assumption that a gradient scaler skips no step. It equals kTakenAsFinite in runtime.h."""
FETCHED = "plimsoll downloaded this into the hub's cache, without weights, because it was missing"
"""The note that plimsoll fetched the description of a model or a data set for the script."""
PACE = "the host's pace"
ADDRESSES = "the driver's addresses"
SIZES_BY_DATA = (
    "the size of its result depends on data that plimsoll did not compute",
    "the size of its result depends on random numbers, and a real GPU draws others",
)
"""The assumptions about sizes that depend on data. They must equal kSizeOf… in runtime.h."""
WORKSPACES = (
    "plimsoll estimates its workspace from similar convolutions, as this one was not measured",
    "plimsoll estimates its workspace from an H100's, as no card like this one was measured",
    "cudnn.benchmark keeps the fastest plan, which differs from run to run",
    "plimsoll estimates its workspace from that of float32, as other types were not measured",
)
"""The assumptions about cuDNN's workspaces. The texts are from rules/convolution.cpp,
rules/convolution_workspaces.h and rules/normalization.cpp."""
DECIDES = {
    **dict.fromkeys(SIZES_BY_DATA, "the data"),
    **dict.fromkeys(WORKSPACES, "cuDNN's workspaces"),
    LETS_GO_LATER: PACE,
    FREE_LATER: PACE,
    ANY_ADDRESSES: ADDRESSES,
}
"""The assumptions that make a peak uncertain, each with the cause of the uncertainty."""
CHANGES_SIZES = (*SIZES_BY_DATA, *WORKSPACES, LETS_GO_LATER)
"""The assumptions that can make a request fail.

Late frees and other addresses change reserved memory only: before a request fails, PyTorch waits
for late frees and returns cached memory to the driver.
"""
NEEDS_TRIALS = (*SIZES_BY_DATA, LETS_GO_LATER)
"""The assumptions for which only more simulated runs of the script can find the peak's range."""
EXTRAPOLATED_NCCL = (
    "NCCL's memory is extrapolated from measurements of up to four ranks on H100s and two on H200s "
    "that NVLink joins"
)
ENDED_BY_SIGNAL = (
    "a signal ended this process before it reported its live blocks; plimsoll assumes all the "
    "memory that the process took of the card, except its context"
)
"""The assumption about the predicted process if a signal ended this process."""
STARTED_PROGRAM = "plimsoll does not see this Python program, which the script started"
"""The assumption about programs that the script starts without `multiprocessing`."""
WATCHER_FAILED = "plimsoll failed to observe this, and the program went on unobserved"
"""The assumption if one of plimsoll's own watchers raised an error."""


@dataclass(frozen=True)
class Assumed:
    """A fact that the simulation could not know and therefore assumed.

    Attributes:
        what: The assumption.
        operation: PyTorch's name of the operation, or "".
        line: The program's line that called the operation first, or None.
        count: The number of calls.
        bytes: The memory that the assumption is about; None if it is not about memory. If plimsoll
            does not know how much memory a kernel allocates, this is the size of the operands and
            results of the largest call.
    """

    what: str
    operation: str
    line: str | None
    count: int
    bytes: int | None = None


def deciding(assumptions: Sequence[Assumed]) -> str:
    """Returns what makes peaks uncertain, as "the data and cuDNN's workspaces"; "" if nothing."""
    what = {assumed.what for assumed in assumptions}
    return " and ".join(dict.fromkeys(by for each, by in DECIDES.items() if each in what))
