"""The results of predictions and fits, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Self, TypeVar

from plimsoll.engine.plans.use import PlanUse
from plimsoll.engine.shared_use import SharedUse
from plimsoll.prediction.allocator_need import AllocatorNeed
from plimsoll.prediction.assumed import NEEDS_TRIALS, Assumed
from plimsoll.prediction.compiled_use import CompiledUse
from plimsoll.prediction.not_kept import NotKept, promises_not_kept
from plimsoll.prediction.rank_use import RankUse, SharedCard
from plimsoll.prediction.timeline import Timeline
from plimsoll.prediction.trials.kept_apart import KeptApart
from plimsoll.prediction.trials.written import Written
from plimsoll.recordings.analysis.category_names import CATEGORIES as ALL_CATEGORIES
from plimsoll.recordings.analysis.lines import LineShare
from plimsoll.recordings.causes.cause import Cause
from plimsoll.torch.simulated.serving_use import ServingUse

CATEGORIES = tuple(name for name in ALL_CATEGORIES if name != "unknown")
"""The categories of memory in a prediction. A simulation knows all, so none is "unknown"."""


_WORKED_OUT = (
    "device_used_range_bytes",
    "samples_per_second",
    "needed_bytes",
    "not_kept",
    "why",
    "may_not_fit",
    "caveats",
    "next",
)
"""Keys of a prediction's JSON that `from_dict` drops, because other keys determine their values."""

_Number = TypeVar("_Number", int, float)


FEWEST_STEPS = 3
"""A step's time needs at least this many steps.

The first step is not timed, because it does work that later steps do not.
"""
INTERRUPTED = "interrupted"
"""The reason why a run or a search ended if the user interrupted it."""


@dataclass(frozen=True)
class Stopped:
    """The moment at which plimsoll stopped a script before its end.

    Attributes:
        why: Why plimsoll stopped the script.
        line: The line that the script was executing.
        steady_since_event: The number of the event that reached the peak of memory.
        events: The number of events up to the stop.
    """

    why: str
    line: str
    steady_since_event: int
    events: int


@dataclass(frozen=True)
class FewerSteps:
    """The training loops that plimsoll ended early, after the number of steps in `--steps`.

    Attributes:
        at_most: The number of steps after which a loop was to end.
        made: The number of optimizer steps that the program made.
        planned: The number of steps of a whole run; None if unknown.
        has_ended: Whether plimsoll could end a loop. Otherwise the program made all its steps.
    """

    at_most: int
    made: int
    planned: int | None
    has_ended: bool


@dataclass(frozen=True)
class CardVerdict:
    """Whether the same run would fit another card, computed from this run's requests.

    Attributes:
        gpu: The card.
        total_bytes: Its memory.
        fits: Whether the run fits, if kernels take as much memory as on the predicted card.
        headroom_bytes: The memory of this card that would stay free if the run reserved as much as
            on the predicted card; negative if memory is missing. Even if it is negative, the run
            can fit this card, because PyTorch may release cached memory to the driver in time.
        may_not_fit: Whether the run may not fit although `fits` is true: the CUDA context or the
            peak may be larger than estimated, by more than `headroom_bytes`.
    """

    gpu: str
    total_bytes: int
    fits: bool
    headroom_bytes: int
    may_not_fit: bool = False


@dataclass(frozen=True)
class GpuUse:
    """The memory that one process used on one GPU.

    Attributes:
        device: The GPU; None for a process that was killed before it named its GPU.
        peak_allocated_bytes: The most bytes in live blocks; None if a signal such as SIGKILL or
            SIGTERM ended the process.
        peak_reserved_bytes: The most bytes that PyTorch reserved from the driver; None if unknown.
        card_bytes: The most that nvidia-smi would show of the process, even if it was killed; None
            if unknown.
        headroom_bytes: The memory of this GPU that stays free, as `PredictionParts` defines it, but
            without counting other processes; None if unknown.
    """

    device: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    card_bytes: int | None
    headroom_bytes: int | None


@dataclass(frozen=True)
class ProcessUse(GpuUse):
    """The memory that one of several processes used on one GPU.

    Attributes:
        process: The process id.
    """

    process: int


@dataclass(frozen=True)
class LineTime:
    """The time that a source line and its backward pass take in each step.

    Attributes:
        line: The line.
        seconds: The time of their kernels on the GPU.
    """

    line: str
    seconds: float


@dataclass(frozen=True)
class StepTime:
    """The time of a step by the simulated clock. Times are estimates, while bytes are exact.

    Attributes:
        what: "step": the time between the ends of two successive calls of the optimizer's `step`.
            Programs without an optimizer have "call of generate()" or "call of the model".
        ends_at: The line at which a step ends, if the program has several optimizers; otherwise
            None. If they take turns, a step is one step of the optimizer that steps least often.
        seconds: The median time of the steps with the most frequent batch size. Evaluations between
            steps are not counted.
        seconds_range: The range in which the time of a step on a real GPU is expected to lie.
        compute_seconds: The part in which kernels run.
        communicating_seconds: The part in which only collectives run, or collectives and copies.
        collectives_seconds: The time of all collectives, including those that run beside kernels.
        network_gbit_per_s: The network rate that plimsoll assumes for each GPU, if collectives
            cross from machine to machine in the step; else None.
        copies_seconds: The part in which only copies run, between host and devices or among
            devices.
        waiting_seconds: The part in which the GPU waits for the host to queue operations. Other
            work of the host, such as loading data, is not counted here.
        host_seconds: The time that the host needs to queue all operations.
        kernels: The number of operations and copies that the host queues.
        samples_per_second: The number of samples in a step, divided by `seconds`; None if the
            number is unknown. In a job, only the samples of one rank count. plimsoll counts the
            samples in the loaders' batches or, if the program has no loader, in the modules'
            inputs. If the program has an optimizer, only samples that reach a backward pass count.
        lines: The source lines with the most time, most first.
    """

    what: str
    ends_at: str | None
    seconds: float
    seconds_range: tuple[float, float]
    compute_seconds: float
    communicating_seconds: float
    collectives_seconds: float
    network_gbit_per_s: int | None
    copies_seconds: float
    waiting_seconds: float
    host_seconds: float
    kernels: int
    samples_per_second: float | None
    lines: list[LineTime]

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Restores an object from the fields that `asdict` returned."""
        low, high = values["seconds_range"]
        lines = [LineTime(**line) for line in values["lines"]]
        return cls(**{**values, "seconds_range": (low, high), "lines": lines})


@dataclass(frozen=True)
class PredictionParts:
    """The prediction for one script on one card.

    Attributes:
        script: The script, or the model and its recipe.
        gpu: The card.
        driver: "linux" or "wddm".
        allocator: The allocator whose rules the simulation follows.
        policy: "strict" or "spill". When the card's own memory is used up, a request fails under
            "strict". Under "spill" it gets shared memory: host memory that the GPU uses directly.
        conf: The allocator's settings, in the syntax of PYTORCH_CUDA_ALLOC_CONF.
        torch: PyTorch's version.
        total_bytes: The part of the card's memory that the program can have.
        context_bytes: The memory of CUDA's context on the card.
        context_most_bytes: The most that the context may take if `context_bytes` is an estimate;
            None if a context was measured on such a card.
        nccl_bytes: NCCL's memory on the card, outside PyTorch's allocator: the middle of
            `nccl_range_bytes`.
        nccl_range_bytes: The least and the most that NCCL may take; None if it takes nothing.
        peak_allocated_bytes: The most bytes in live blocks, on the GPU with the least headroom.
        peak_reserved_bytes: The most bytes reserved from the driver on that GPU.
        device_used_bytes: The memory that nvidia-smi would show at that peak: context, NCCL, and
            memory reserved on the card. If plimsoll ran the script again with unlimited memory, the
            figure is from that run. If several processes use the card, the figure is the most that
            all of them have at one time.
        shared_used_bytes: The most bytes reserved in shared memory. With `wddm` the driver spills
            silently.
        plan: How many bytes the elastic allocator placed by its plan (docs/plans.md); None if it
            had no plan.
        shared: The use of shared memory, and a lower bound of the time that it costs; None if no
            memory could spill or be placed there. If the script does not fit, `shared`,
            `shared_by_category` and `shared_lines` cover the run up to the failure.
        shared_by_category: Bytes in shared memory by `CATEGORIES`, at the peak of shared memory.
        shared_lines: The source lines with the most in shared memory at that moment, most first.
        fits: Whether the script gets all the memory that it requests; None if unknown.
        may_fail_with_bytes: An allocated peak, within `peak_allocated_range_bytes`, with which the
            script would run out of memory; None if the card is large enough for the whole range.
        why_unknown: Why `fits` is unknown; None if it is known.
        headroom_bytes: The memory that stays free at the peak, on the card and in the shared memory
            that requests may spill into. All processes on the card count. If the program's own
            limit leaves less free, the figure is what the limit leaves. Negative if memory is
            missing.
        limit_bytes: The program's own limit on PyTorch's reserved memory, as set by
            `set_per_process_memory_fraction`. If the program set several limits, this is the one
            with the least room left. None if the program set no limit.
        used_bytes: The memory of the card that other programs already have, outside `total_bytes`.
        least_reserved_bytes: An estimate of the least memory with which PyTorch can serve the same
            requests, releasing cached memory to the driver when needed; None if no replay found it.
        peak_allocated_range_bytes: The least and the most that `peak_allocated_bytes` can be if
            sizes depend on data that plimsoll does not know; None if no size does. The least is the
            sum of the requested sizes, because the rounding of blocks depends on their addresses.
        peak_reserved_range_bytes: The least and the most that `peak_reserved_bytes` can be.
        stopped: Why plimsoll ended the script early; None if it did not. All figures are then those
            up to that moment.
        fewer_steps: The training loops that plimsoll ended early; None if no step was left out.
        out_of_memory: PyTorch's text of the error that ended the script, or None.
        num_ooms: Failed requests, including those after which the script continued.
        by_category: Bytes live at the peak by `CATEGORIES`; they add up to `peak_allocated_bytes`.
        top_lines: The source lines that hold the most at the peak, most first.
        step_peaks_bytes: The peak of each step that an optimizer ended.
        step_seconds: The estimated time of a step; None if there were fewer than three steps, or
            the script does not fit.
        step_seconds_range: The range in which the time of a step on a real GPU is expected to lie;
            None if `step_seconds` is None.
        step: `step_seconds` in detail.
        other_cards: For other cards, whether the same run fits if all the program's GPUs are such
            cards and nothing spills.
        no_other_cards: Why `other_cards` is empty; None if it has cards, or if the script does not
            fit.
        devices: The memory that the process used on each of its GPUs. The figures above are those
            of the GPU with the least headroom; `fits`, `headroom_bytes` and `other_cards` hold for
            all of them.
        assumptions: All assumptions of the simulation.
        convolutions: The convolutions that cuDNN ran, in words; `plimsoll measure` measures them.
        written: The files that the script wrote, the largest first. Empty if the script was allowed
            to write to real files, because plimsoll then does not look for written files.
        serving: How a serving engine divided the card; None if the script ran no engine.
        causes: Why the GPU that the figures describe needs its memory, the main cause first.
        kept_apart: How real files were protected from the script, and which accesses the kernel
            refused; None if the script was allowed to write to real files.
        uses_cuda: Whether the script touched CUDA at all.
        events: The number of simulated requests and frees.
        seconds: The time of the prediction.
        processes: The use of each process, the script's own included. Empty unless the script
            started processes that used GPUs and have no rank. If it did, `fits`, `headroom_bytes`
            and `device_used_bytes` count all processes. The other figures are those of the process
            with the most memory on the fullest card.
        worst_rank: The rank of a job with the least headroom; None if the script is not a job. All
            other figures are those of this rank.
        ranks: The use of each rank that ran.
        world_size: The number of all ranks of the job, also of those that plimsoll did not run; 1
            if the script is not a job.
        shared_cards: The cards that several processes use.
        compiled: The use of compiled functions; None if none ran.
        timeline: Memory over the run, for a picture; None if the script allocated nothing.
        host_peak_bytes: An estimate of the most host memory that all processes of the program use
            together, on the machine where they use the most; None if unknown.
        host_peak_range_bytes: The least and the most that `host_peak_bytes` may be.
        needs: The card memory that a script needs if it does not fit. The first entry is that with
            its own allocator. If the live blocks alone fit the card, entries for other settings
            and for plimsoll's allocator follow. If several GPUs are used, the most on any of
            them. Empty if unknown; then only `device_used_bytes`, of a run with unlimited memory,
            says more.
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
    plan: PlanUse | None
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
    world_size: int = 1
    shared_cards: list[SharedCard] = field(default_factory=list)
    compiled: CompiledUse | None = None
    used_bytes: int = 0
    least_reserved_bytes: int | None = None
    timeline: Timeline | None = None
    host_peak_bytes: int | None = None
    host_peak_range_bytes: tuple[int, int] | None = None
    why_unknown: str | None = None
    may_fail_with_bytes: int | None = None
    limit_bytes: int | None = None
    no_other_cards: str | None = None
    convolutions: list[str] = field(default_factory=list)
    kept_apart: KeptApart | None = None
    causes: list[Cause] = field(default_factory=list)
    serving: ServingUse | None = None
    fewer_steps: FewerSteps | None = None
    context_most_bytes: int | None = None
    needs: list[AllocatorNeed] = field(default_factory=list)

    @property
    def needed_bytes(self) -> int | None:
        """The least memory of a card on which a script that does not fit runs to its end.

        None if unknown. The script's own allocator counts, and the CUDA context and NCCL too.
        """
        return self.needs[0].card_bytes if self.fits is False and self.needs else None

    @property
    def room_bytes(self) -> int:
        """The memory of the card for PyTorch's allocator."""
        return self.total_bytes - self.context_bytes - self.nccl_bytes

    @property
    def device_used_range_bytes(self) -> tuple[int, int] | None:
        """The least and the most that `device_used_bytes` can be.

        It combines the ranges of reserved memory and NCCL's memory. None if neither has a range, or
        if several processes share the card.
        """
        reserved, nccl = self.peak_reserved_range_bytes, self.nccl_range_bytes
        if not (reserved or nccl) or self.shared_cards:
            return None
        low, high = reserved or (self.peak_reserved_bytes,) * 2
        least, most = nccl or (self.nccl_bytes,) * 2
        besides = self.device_used_bytes - self.peak_reserved_bytes - self.nccl_bytes
        return besides + low + least, besides + high + most

    @property
    def samples_per_second(self) -> float | None:
        """The samples a second of all ranks; None if unknown.

        plimsoll assumes that each rank has its own samples. If ranks share the work on a sample, as
        with tensor parallelism, the figure is too high.
        """
        rate = None if self.step is None else self.step.samples_per_second
        return None if rate is None else rate * self.world_size

    @property
    def needs_trials(self) -> bool:
        """Whether unknown data may change what the program does, so that ranges need more runs."""
        return any(assumed.what in NEEDS_TRIALS for assumed in self.assumptions)

    @property
    def not_kept(self) -> list[NotKept]:
        """The guarantees that this prediction could not give."""
        return promises_not_kept(self.assumptions, self.kept_apart)

    @property
    def requested_bytes(self) -> int:
        """The requested part of `peak_allocated_bytes`. The rest is the category `rounding`."""
        return self.peak_allocated_bytes - self.by_category["rounding"]

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON, in base units and with stable keys."""
        return asdict(self) | {
            "device_used_range_bytes": self.device_used_range_bytes,
            "samples_per_second": self.samples_per_second,
            "needed_bytes": self.needed_bytes,
            "not_kept": [asdict(each) for each in self.not_kept],
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Restores an object from the plain data that `to_dict` returned."""
        return cls(
            **{
                **{key: value for key, value in values.items() if key not in _WORKED_OUT},
                "peak_allocated_range_bytes": _pair(values["peak_allocated_range_bytes"]),
                "peak_reserved_range_bytes": _pair(values["peak_reserved_range_bytes"]),
                "host_peak_range_bytes": _pair(values["host_peak_range_bytes"]),
                "nccl_range_bytes": _pair(values["nccl_range_bytes"]),
                "step_seconds_range": _pair(values["step_seconds_range"]),
                "step": values["step"] and StepTime.from_dict(values["step"]),
                "stopped": values["stopped"] and Stopped(**values["stopped"]),
                "fewer_steps": values["fewer_steps"] and FewerSteps(**values["fewer_steps"]),
                "shared": values["shared"] and SharedUse(**values["shared"]),
                "plan": values["plan"] and PlanUse(**values["plan"]),
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
                "causes": [Cause(**cause) for cause in values["causes"]],
                "serving": values["serving"] and ServingUse.from_dict(values["serving"]),
                "timeline": values["timeline"] and Timeline(**values["timeline"]),
                "needs": [AllocatorNeed(**need) for need in values["needs"]],
            }
        )


def _pair(values: list[_Number] | None) -> tuple[_Number, _Number] | None:
    return None if values is None else (values[0], values[1])
