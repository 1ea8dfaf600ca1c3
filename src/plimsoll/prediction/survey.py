"""The parts of a program that could be changed, as observed while the program ran."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Self

from plimsoll.recordings.causes.cause import Cause

if TYPE_CHECKING:
    from collections.abc import Iterable

Scalar = int | float | str | bool | None


@dataclass(frozen=True)
class Place:
    """A line of the script itself, not of a library.

    Attributes:
        line: The line's number.
        function: The qualified name of the function around it; "<module>" for none.
    """

    line: int
    function: str


@dataclass(frozen=True)
class ArgumentUse:
    """A command-line option of the script, as declared with `argparse`.

    Attributes:
        names: All names of the option, such as "--batch-size".
        value: The option's value in the observed run; None if it is None or not a `Scalar`.
    """

    names: list[str]
    value: Scalar


def no_such_option(option: str, names: Iterable[str]) -> str:
    """Says that the script has no such option, and which similar one it has."""
    near = get_close_matches(option, [*names], n=1)
    return f"the script has no {option}" + (f"; did you mean {near[0]}?" if near else "")


@dataclass(frozen=True)
class OptimizerUse:
    """An optimizer.

    Attributes:
        kind: Its class, such as "torch.optim.adamw.AdamW".
        made: The line of the script that makes it, directly or through a library; None if unknown.
        stepped: The line of the script that calls its `step`, directly or through a library; None
            if unknown.
        settings: The plain values among its constructor's arguments.
        parameter_bytes: The size of the parameters that it updates.
        gradient_bytes: The largest size of the gradients at one of its steps.
        state_bytes: The size of its state on GPUs.
        is_foreach: Whether its steps use PyTorch's foreach functions, which handle many parameters
            in one call.
        keeps_gradients: Whether gradients stayed in memory while the model was called for the next
            step, although the script does not accumulate gradients.
    """

    kind: str
    made: Place | None
    stepped: Place | None
    settings: dict[str, Scalar]
    parameter_bytes: int
    gradient_bytes: int
    state_bytes: int
    is_foreach: bool
    keeps_gradients: bool

    @property
    def is_a_librarys(self) -> bool:
        """Whether a library seems to make the optimizer.

        True if no line of the script is known to make the optimizer, or if the same line makes and
        steps it. Such a line calls a library, as in `trainer.train()`.
        """
        return self.made is None or self.made == self.stepped


@dataclass(frozen=True)
class LossUse:
    """Calls of cross_entropy on one line.

    Attributes:
        called: The line of the script that calls cross_entropy, directly or through a library; None
            if unknown.
        logits_bytes: The size of the logits of the largest call.
        rows: The number of rows of these logits, each with a target.
        calls: The number of calls.
    """

    called: Place | None
    logits_bytes: int
    rows: int
    calls: int


@dataclass(frozen=True)
class Recomputation:
    """A set of modules to recompute in the backward pass, and the effect on a step.

    Attributes:
        modules: The names of the modules.
        peak_bytes: The estimated peak of allocated memory if these modules are recomputed.
        seconds: The estimated time added to a step.
    """

    modules: list[str]
    peak_bytes: int
    seconds: float


@dataclass(frozen=True)
class ModelCall:
    """A line of the script that calls a model.

    Attributes:
        place: The line.
        tensors: The variables that hold a tensor with a row for each sample of the batch. Tensors
            that need a gradient, such as parameters, are left out.
        mappings: The variables that hold a mapping of such tensors. At least one tensor of each
            mapping is an input of the model.
    """

    place: Place
    tensors: list[str]
    mappings: list[str]


@dataclass(frozen=True)
class ModelUse:
    """A model: an outermost module.

    Attributes:
        kind: Its class.
        names: Three strings for each expression by which the script names the model. The first is
            the expression, such as "model" or "self.net". The second is the function in which it
            is valid. The third is the path from the outermost module to the expression's value: ""
            for the outermost module itself, "module" for the module inside a wrapper.
        calls: The script's lines on the call stack when the model is called, the outermost first.
        batch: The first dimension of its input; None if unknown.
        is_transformers: Whether it is a `PreTrainedModel`.
        attention: The name of its attention implementation in Transformers, such as "sdpa"; None
            for other models.
        has_batch_statistics: Whether it normalizes by the batch's own statistics.
        has_dropout: Whether it draws random numbers in training.
        autocast: The data type of autocast during its call; None without autocast.
        parameter_types: The bytes of its parameters on GPUs, by data type.
        recomputations: The sets of modules that could be recomputed, the lowest peak first.
        blocks: The names of its lists of layers. All layers of a list have the same class. The name
            "" says that the model itself is such a list.
        is_wrapped: Whether the script calls it through a wrapper such as DistributedDataParallel.
    """

    kind: str
    names: list[tuple[str, str, str]]
    calls: list[ModelCall]
    batch: int | None
    is_transformers: bool
    attention: str | None
    has_batch_statistics: bool
    has_dropout: bool
    autocast: str | None
    parameter_types: dict[str, int]
    recomputations: list[Recomputation] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)
    is_wrapped: bool = False


@dataclass(frozen=True)
class Wrapping:
    """A line that wraps a model for training on several ranks.

    Attributes:
        kind: The wrapper's class, "DistributedDataParallel" or "FullyShardedDataParallel".
        made: The line of the script, which wraps the model directly or through a library; None if
            unknown.
        settings: The settings that change memory: "gradient_as_bucket_view", or
            "sharding_strategy" with the name of the strategy.
        comes_first: Whether the wrapper is made before the first optimizer.
    """

    kind: str
    made: Place | None
    settings: dict[str, Scalar]
    comes_first: bool


@dataclass(frozen=True)
class AllocatorUse:
    """The memory that an allocator reserves for the run's requests.

    Attributes:
        allocator: "native" (PyTorch's), "elastic" (plimsoll's) or "uncached" (without a cache).
        conf: Its settings, in the syntax of PYTORCH_CUDA_ALLOC_CONF.
        peak_allocated_bytes: The most bytes in live blocks.
        peak_reserved_bytes: The most bytes reserved from a driver with unlimited memory.
        fits: Whether the memory that `Request.room` leaves to the allocator suffices for all
            requests, even if the work on other streams finishes late. The allocator may release
            cached memory to serve a request.
        least_bytes: The least memory in which it serves all requests, rounded up to the driver's
            granularity; None if `fits`, or if no search was made.
        within_bytes: The most bytes reserved where `Request.room` is the limit; None if `fits` is
            False, or if even `peak_reserved_bytes` stay below the limit.
    """

    allocator: str
    conf: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    fits: bool
    least_bytes: int | None = None
    within_bytes: int | None = None

    @property
    def taken_bytes(self) -> int:
        """The most bytes that are reserved on the card, if the program fits."""
        return self.peak_reserved_bytes if self.within_bytes is None else self.within_bytes

    @property
    def least_reserved_bytes(self) -> int:
        """The least memory that is known to suffice for all requests."""
        return self.peak_reserved_bytes if self.least_bytes is None else self.least_bytes


@dataclass(frozen=True)
class Survey:
    """The parts of a program that could be changed.

    Attributes:
        arguments: Options of its command line.
        optimizers: The optimizers, in order of creation.
        models: The trained models, the one that keeps the most memory first.
        losses: Calls of cross_entropy, the largest first.
        backwards: The lines where the script calls `backward`.
        allocators: The use of each allocator for the same requests, the script's own first. For a
            job, the use of the rank that needs the most.
        ranks: The number of ranks of the job; 1 for no job.
        wrappings: The outermost wrappers of the job's models.
        causes: The causes of the script's memory that a change can remove.
        batches: The batch sizes of its loaders.
        files: The configuration files (YAML, JSON, TOML) that it read, by absolute path.
    """

    arguments: list[ArgumentUse] = field(default_factory=list)
    optimizers: list[OptimizerUse] = field(default_factory=list)
    models: list[ModelUse] = field(default_factory=list)
    losses: list[LossUse] = field(default_factory=list)
    backwards: list[Place] = field(default_factory=list)
    allocators: list[AllocatorUse] = field(default_factory=list)
    ranks: int = 1
    wrappings: list[Wrapping] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Returns the survey as plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Makes the survey from the result of `to_dict`, even after a round trip through JSON."""
        return cls(
            arguments=[ArgumentUse(**each) for each in values["arguments"]],
            optimizers=[_optimizer(each) for each in values["optimizers"]],
            models=[_model(each) for each in values["models"]],
            losses=[
                LossUse(**{**each, "called": _place(each["called"])}) for each in values["losses"]
            ],
            backwards=[Place(**each) for each in values["backwards"]],
            allocators=[AllocatorUse(**each) for each in values["allocators"]],
            ranks=values["ranks"],
            wrappings=[
                Wrapping(**{**each, "made": _place(each["made"])}) for each in values["wrappings"]
            ],
            causes=[Cause(**each) for each in values["causes"]],
            batches=values["batches"],
            files=values["files"],
        )


def _place(values: dict[str, Any] | None) -> Place | None:
    return None if values is None else Place(**values)


def _optimizer(values: dict[str, Any]) -> OptimizerUse:
    places = {"made": _place(values["made"]), "stepped": _place(values["stepped"])}
    return OptimizerUse(**{**values, **places})


def _model(values: dict[str, Any]) -> ModelUse:
    return ModelUse(
        **{
            **values,
            "names": [(name, function, path) for name, function, path in values["names"]],
            "calls": [
                ModelCall(**{**each, "place": Place(**each["place"])}) for each in values["calls"]
            ],
            "recomputations": [Recomputation(**each) for each in values["recomputations"]],
        }
    )
