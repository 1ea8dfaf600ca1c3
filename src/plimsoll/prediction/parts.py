"""What predictions and fits say, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Self, TypeVar

from plimsoll.analysis import CATEGORIES as ALL_CATEGORIES
from plimsoll.analysis import LineShare
from plimsoll.prediction.compiled_use import CompiledUse
from plimsoll.prediction.rank_use import RankUse, SharedCard
from plimsoll.prediction.timeline import Timeline
from plimsoll.simulator import SharedUse
from plimsoll.trials.kept_apart import KeptApart
from plimsoll.trials.written import Written

LETS_GO_LATER = "when it lets go of a collective's tensors hangs on the host's pace"
"""What is assumed of NCCL's watchdog; kLetGoLater of the simulated GPU's collectives/group.cpp."""
SIZES_BY_DATA = (
    "its size depends on values that nobody knows",
    "its size depends on random numbers, of another generator",
    LETS_GO_LATER,
)
"""What is assumed where a range is the answer; kSizeOf… of the simulated GPU's runtime.h."""
EXTRAPOLATED_NCCL = "extrapolated: measured were one rank, and two that NVLink joins"
ENDED_BY_SIGNAL = (
    "a signal ended it before it told what it had in live blocks: taken to be all that it took of "
    "the card beside its context"
)
"""The assumption where a signal ended the process that took the most of the fullest card."""
STARTED_PROGRAM = "a Python program that the script started has no simulated GPUs, and is not seen"
"""What is assumed of one that was started otherwise than by `multiprocessing`."""
WATCHER_FAILED = "plimsoll failed to note this, and the program went on without the notes"
"""The assumption where one of plimsoll's own watchers (see `watchers`) raised an error."""
CATEGORIES = tuple(name for name in ALL_CATEGORIES if name != "unknown")
"""The categories of memory in a prediction, which knows the category of every block."""


_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class Assumed:
    """Something that the simulation cannot know and took for granted.

    Attributes:
        what: The assumption.
        operation: PyTorch's name of the operation it is about, or "".
        line: Where the program called it first, or None.
        count: How often.
        bytes: Of memory that is not counted, about what it may cost; else None. Of what a kernel
            takes inside and nobody knows: what the operands and results of the largest call take.
    """

    what: str
    operation: str
    line: str | None
    count: int
    bytes: int | None = None


@dataclass(frozen=True)
class Stopped:
    """Why a trial ended before its script did.

    Attributes:
        why: What ended it.
        line: Where the script was.
        steady_since_event: The event at which memory was fullest; nothing higher came after it.
        events: How many there were.
    """

    why: str
    line: str
    steady_since_event: int
    events: int


@dataclass(frozen=True)
class CardVerdict:
    """Whether the same run would fit another card, computed from this run's requests.

    Attributes:
        gpu: The card.
        total_bytes: Its memory.
        fits: Whether it fits; kernels are taken to be those of the predicted card.
        headroom_bytes: What would stay free at the peak of the run on the predicted card; negative
            for what is missing. A card that fits all the same does so only because cached memory
            goes back to the driver when it is needed.
    """

    gpu: str
    total_bytes: int
    fits: bool
    headroom_bytes: int


@dataclass(frozen=True)
class GpuUse:
    """The memory that one process used of one GPU.

    Attributes:
        device: The GPU; None where it is not known which one a process used that was killed.
        peak_allocated_bytes: The most in live blocks; None where the process was killed, as by
            SIGKILL or SIGTERM.
        peak_reserved_bytes: The most taken from the driver by PyTorch; None if it is not known.
        card_bytes: The most that nvidia-smi would show of the process, also of one that was killed;
            None where that is not known.
        headroom_bytes: The memory that the process leaves free there, as in a `PredictionParts`,
            without regard to other processes; None where it is not known.
    """

    device: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    card_bytes: int | None
    headroom_bytes: int | None


@dataclass(frozen=True)
class ProcessUse(GpuUse):
    """The memory that one of several processes used of one GPU.

    Attributes:
        process: The number of the process.
    """

    process: int


@dataclass(frozen=True)
class LineTime:
    """What a source line's kernels take in a step, its backward pass included.

    Attributes:
        line: The line.
        seconds: On the GPU.
    """

    line: str
    seconds: float


@dataclass(frozen=True)
class StepTime:
    """How long a step takes, by the simulated clock: an estimate, where bytes are exact.

    Attributes:
        what: "step", from the end of one optimizer's step to the next; in programs without one
            "call of generate()" or "call of the model".
        seconds: Of the one in the middle.
        seconds_range: Where measured times lie.
        compute_seconds: While kernels run.
        copies_seconds: While nothing but copies run, between host and devices or among these.
        waiting_seconds: While the GPU waits for the host to queue operations. What else the host
            does, such as loading data, takes no time here.
        host_seconds: What the host needs to queue all that.
        kernels: Operations and copies that are queued.
        samples_per_second: By the first dimension of what the outermost module is given; None where
            that is not known.
        lines: The source lines that take the most, most first.
    """

    what: str
    seconds: float
    seconds_range: tuple[float, float]
    compute_seconds: float
    copies_seconds: float
    waiting_seconds: float
    host_seconds: float
    kernels: int
    samples_per_second: float | None
    lines: list[LineTime]

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `asdict`."""
        low, high = values["seconds_range"]
        lines = [LineTime(**line) for line in values["lines"]]
        return cls(**{**values, "seconds_range": (low, high), "lines": lines})


@dataclass(frozen=True)
class PredictionParts:
    """All that is said of one script on one card.

    Attributes:
        script: The script, or the model and its recipe.
        gpu: The card.
        driver: "linux" or "wddm".
        allocator: Whose rules were followed.
        policy: "strict", or "spill": requests go on in shared memory.
        conf: As PYTORCH_CUDA_ALLOC_CONF.
        torch: PyTorch's version.
        total_bytes: The card's memory, as far as it is the program's.
        context_bytes: What CUDA itself takes on it.
        nccl_bytes: What NCCL takes there, outside PyTorch's allocator: the middle of what follows.
        nccl_range_bytes: The least and the most that it may be; None where NCCL takes nothing.
        peak_allocated_bytes: The most in live blocks, on the GPU that has the least to spare.
        peak_reserved_bytes: The most taken from the driver there.
        device_used_bytes: What nvidia-smi would show at that peak: context, NCCL, and what is
            reserved on the card; where it does not fit, the least memory of a card that holds the
            peak. Where several processes use the card, the most that all have at the same time.
        shared_used_bytes: What was reserved in shared memory at most: with `wddm`, silently.
        shared: What lay in shared memory, and the least that it costs; None where nothing could
            spill and nothing was placed there. This and what follows of shared memory is up to
            the failure, if the script does not fit.
        shared_by_category: Bytes in shared memory by `CATEGORIES`, when it held the most.
        shared_lines: The source lines that had the most there then, most first.
        fits: Whether the script gets all the memory it asks for; None where that is not known.
        why_unknown: Why `fits` is not known; None where it is.
        headroom_bytes: What stays free at the peak, of the card and of the shared memory that
            requests may spill into, or of the program's own limit if that is less; negative for
            what is missing. All processes that use the card are counted.
        limit_bytes: The program's own limit of what PyTorch may reserve of the card, as of
            `set_per_process_memory_fraction`: of several, the one that left the least. None where
            the program set none.
        used_bytes: What others already have of the card, which is not part of `total_bytes`.
        least_reserved_bytes: About the least that could be reserved for the same requests, as
            cached memory goes back to the driver when it is needed; None where it was not asked
            for, or nobody knows.
        peak_allocated_range_bytes: The least and the most that `peak_allocated_bytes` is, by what
            data is like that nobody knows; None where no size depends on such. The least is what
            was asked for: how much larger blocks are hangs on addresses.
        peak_reserved_range_bytes: The same of `peak_reserved_bytes`.
        stopped: Why the script was ended early, so that all figures are those so far; or None.
        out_of_memory: PyTorch's text of the error that ended the script, or None.
        num_ooms: Requests that failed, also those after which the script went on.
        by_category: Bytes live at the peak by `CATEGORIES`; they add up to `peak_allocated_bytes`.
        top_lines: The source lines that hold the most at the peak, most first.
        step_peaks_bytes: The peak of each step that an optimizer ended.
        step_seconds: How long a step takes; None where there were fewer than three, or it
            does not fit. Estimated.
        step_seconds_range: Where measured times lie.
        step: What that time is made of.
        other_cards: The verdict on other cards, for all GPUs of the program, without spilling.
        no_other_cards: Why this run says nothing of other cards, and `other_cards` is empty; None
            where it does, or does not fit.
        devices: The memory that the process used of each GPU, by number. The figures above are
            those of the GPU that has the least to spare; `fits`, `headroom_bytes` and `other_cards`
            hold for all of them.
        assumptions: All that was assumed.
        written: What the script wrote, the largest first; unknown, and empty, where it was kept.
        kept_apart: How the script was kept from real files, and what the kernel refused it; None
            where its writes were kept.
        uses_cuda: Whether the script touched CUDA at all.
        events: Requests and frees that were simulated.
        seconds: Time that the prediction took.
        processes: Where processes without a rank that the script started used GPUs: what each
            process used, the script's own too. All else is then said of the one that took the most
            of the fullest card, but for `fits`, `headroom_bytes` and `device_used_bytes`, which
            count all processes.
        worst_rank: Where the script is a job of ranks: the one that has the least to spare, of
            which all else is said; else None.
        ranks: What each rank takes.
        shared_cards: The cards that several processes use.
        compiled: What ran compiled; None where nothing did.
        timeline: Memory over the run, for a picture; None where nothing was asked for.
        host_peak_bytes: The most that the program takes of the memory of one machine, all its
            processes together; an estimate, None where it is not known.
        host_peak_range_bytes: The least and the most that this may be.
    """

    script: str
    gpu: str
    driver: str
    allocator: str
    policy: str
    conf: str
    torch: str
    total_bytes: int
    context_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    device_used_bytes: int
    shared_used_bytes: int
    shared: SharedUse | None
    shared_by_category: dict[str, int]
    shared_lines: list[LineShare]
    fits: bool | None
    headroom_bytes: int
    peak_allocated_range_bytes: tuple[int, int] | None
    peak_reserved_range_bytes: tuple[int, int] | None
    stopped: Stopped | None
    out_of_memory: str | None
    num_ooms: int
    by_category: dict[str, int]
    top_lines: list[LineShare]
    step_peaks_bytes: list[int]
    step_seconds: float | None
    step_seconds_range: tuple[float, float] | None
    step: StepTime | None
    other_cards: list[CardVerdict]
    assumptions: list[Assumed]
    written: list[Written]
    uses_cuda: bool
    events: int
    seconds: float = field(compare=False)
    devices: list[GpuUse] = field(default_factory=list)
    nccl_bytes: int = 0
    nccl_range_bytes: tuple[int, int] | None = None
    processes: list[ProcessUse] = field(default_factory=list)
    worst_rank: int | None = None
    ranks: list[RankUse] = field(default_factory=list)
    shared_cards: list[SharedCard] = field(default_factory=list)
    compiled: CompiledUse | None = None
    used_bytes: int = 0
    least_reserved_bytes: int | None = None
    timeline: Timeline | None = None
    host_peak_bytes: int | None = None
    host_peak_range_bytes: tuple[int, int] | None = None
    why_unknown: str | None = None
    limit_bytes: int | None = None
    no_other_cards: str | None = None
    kept_apart: KeptApart | None = None

    @property
    def room_bytes(self) -> int:
        """What the card has for PyTorch's allocator."""
        return self.total_bytes - self.context_bytes - self.nccl_bytes

    @property
    def depends_on_data(self) -> bool:
        """Whether a size was taken from values that nobody knows."""
        return any(assumed.what in SIZES_BY_DATA for assumed in self.assumptions)

    @property
    def requested_bytes(self) -> int:
        """Of `peak_allocated_bytes` what was asked for; blocks are larger by what is `rounding`."""
        return self.peak_allocated_bytes - self.by_category["rounding"]

    def to_dict(self) -> dict[str, Any]:
        """For JSON: base units, stable keys."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        return cls(
            **{
                **values,
                "peak_allocated_range_bytes": _pair(values["peak_allocated_range_bytes"]),
                "peak_reserved_range_bytes": _pair(values["peak_reserved_range_bytes"]),
                "host_peak_range_bytes": _pair(values["host_peak_range_bytes"]),
                "nccl_range_bytes": _pair(values["nccl_range_bytes"]),
                "step_seconds_range": _pair(values["step_seconds_range"]),
                "step": values["step"] and StepTime.from_dict(values["step"]),
                "stopped": values["stopped"] and Stopped(**values["stopped"]),
                "shared": values["shared"] and SharedUse(**values["shared"]),
                "shared_lines": [LineShare(**line) for line in values["shared_lines"]],
                "top_lines": [LineShare(**line) for line in values["top_lines"]],
                "other_cards": [CardVerdict(**card) for card in values["other_cards"]],
                "assumptions": [Assumed(**assumed) for assumed in values["assumptions"]],
                "devices": [GpuUse(**use) for use in values["devices"]],
                "processes": [ProcessUse(**use) for use in values["processes"]],
                "ranks": [RankUse.from_dict(use) for use in values["ranks"]],
                "shared_cards": [SharedCard(**card) for card in values["shared_cards"]],
                "written": [Written(**one) for one in values["written"]],
                "kept_apart": values["kept_apart"] and KeptApart.from_dict(values["kept_apart"]),
                "compiled": values["compiled"] and CompiledUse.from_dict(values["compiled"]),
                "timeline": values["timeline"] and Timeline(**values["timeline"]),
            }
        )


def _pair(values: list[_Number] | None) -> tuple[_Number, _Number] | None:
    return None if values is None else (values[0], values[1])
