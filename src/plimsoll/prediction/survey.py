"""What a program is made of that could be changed, as a trial of it saw."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Self

Scalar = int | float | str | bool | None


@dataclass(frozen=True)
class Place:
    """A line of the script itself, not of a library that it calls.

    Attributes:
        line: Its number.
        function: The function it is in, by its qualified name; "<module>" for none.
    """

    line: int
    function: str


@dataclass(frozen=True)
class ArgumentUse:
    """An option of the script's command line, by `argparse`.

    Attributes:
        names: As "--batch-size"; several for one and the same.
        value: What it is in this trial; None also for what is no plain value.
    """

    names: list[str]
    value: Scalar


@dataclass(frozen=True)
class OptimizerUse:
    """An optimizer.

    Attributes:
        kind: Its class, as "torch.optim.adamw.AdamW".
        made: Where the script makes it; None where a library does.
        stepped: Where the script calls its `step`; None likewise.
        settings: Of what it was made with, the plain values.
        parameter_bytes: Of what it updates.
        gradient_bytes: Of the gradients at its last step.
        state_bytes: Of its state, on GPUs.
        is_foreach: Whether its last step handled all parameters at once, in lists.
        keeps_gradients: Whether gradients lived on while the model was called for the next step,
            although no others were added to them.
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
        """Whether a library makes and steps it, perhaps both in one call of the script's."""
        return self.made is None or self.made == self.stepped


@dataclass(frozen=True)
class LossUse:
    """Calls of cross_entropy in one place.

    Attributes:
        called: Where the script calls it, or what calls it; None where that is not known.
        logits_bytes: Of the logits of the largest call.
        rows: How many rows these have, each with a target.
        calls: How many calls there were.
    """

    called: Place | None
    logits_bytes: int
    rows: int
    calls: int


@dataclass(frozen=True)
class Recomputation:
    """Modules that compute again in the backward pass what they do not keep.

    Attributes:
        modules: Their names.
        peak_bytes: Of allocated memory then, about.
        seconds: That a step takes longer, about.
    """

    modules: list[str]
    peak_bytes: int
    seconds: float


@dataclass(frozen=True)
class ModelCall:
    """Where the script is while a model is called.

    Attributes:
        place: The line.
        tensors: Variables that hold tensors with a row for each of the batch, and no parameter.
        mappings: Variables that hold mappings of such, among them what the model is given.
    """

    place: Place
    tensors: list[str]
    mappings: list[str]


@dataclass(frozen=True)
class ModelUse:
    """A model: a module that no other one calls.

    Attributes:
        kind: Its class.
        names: Expressions that mean it in the script, as "model" or "self.net", each with the
            function in which it does, and the name of the model within what they mean: "" or, of a
            wrapped one, as "module".
        calls: The functions of the script that call it, from the outside in.
        batch: The first dimension of what it is called with; None where that is not known.
        is_transformers: Whether it is a `PreTrainedModel`.
        attention: Its attention's implementation, by Transformers; else None.
        has_batch_statistics: Whether it normalizes by the batch's own statistics.
        has_dropout: Whether it draws random numbers in training.
        autocast: The type of autocast during its call; None for none.
        parameter_types: Bytes of parameters on GPUs by type.
        recomputations: What could be computed again, the fewest bytes first.
        blocks: Lists of modules of one kind in it, by name: its layers. "" for the model itself.
        is_wrapped: Whether it is called by way of DistributedDataParallel or the like.
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
    """Where a model is put into what several ranks train it by.

    Attributes:
        kind: The wrapper's class, "DistributedDataParallel" or "FullyShardedDataParallel".
        made: Where the script does that; None where a library does.
        settings: Of what it was made with, what matters: "gradient_as_bucket_view", or
            "sharding_strategy" by its name.
        comes_first: Whether no optimizer had been made then.
    """

    kind: str
    made: Place | None
    settings: dict[str, Scalar]
    comes_first: bool


@dataclass(frozen=True)
class AllocatorUse:
    """What an allocator reserves for the run's requests.

    Attributes:
        allocator: "native", "elastic" or "uncached".
        conf: As PYTORCH_CUDA_ALLOC_CONF.
        peak_allocated_bytes: The most in live blocks.
        peak_reserved_bytes: The most taken from the driver, where that has no end.
        fits: Whether it serves all in the room that there is: it reserves no more, or cached memory
            goes back in time, at whatever pace other streams go on.
        least_bytes: The least room in which it serves all, to a granule, where it does not fit and
            this was found out; else None.
    """

    allocator: str
    conf: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    fits: bool
    least_bytes: int | None = None

    @property
    def least_reserved_bytes(self) -> int:
        """What it needs at the least, as far as that was found out."""
        return self.peak_reserved_bytes if self.least_bytes is None else self.least_bytes


@dataclass(frozen=True)
class Survey:
    """What a program is made of.

    Attributes:
        arguments: Options of its command line.
        optimizers: In the order in which they were made.
        models: Those that are trained, the one that keeps the most first.
        losses: Calls of cross_entropy, the largest first.
        backwards: Where the script calls `backward`.
        allocators: What these reserve for the same requests; the script's own is the first. Of a
            job, what the rank needs that needs the most.
        ranks: How many ranks the job has; 1 for no job.
        wrappings: Of the job's models, the outermost ones.
    """

    arguments: list[ArgumentUse] = field(default_factory=list)
    optimizers: list[OptimizerUse] = field(default_factory=list)
    models: list[ModelUse] = field(default_factory=list)
    losses: list[LossUse] = field(default_factory=list)
    backwards: list[Place] = field(default_factory=list)
    allocators: list[AllocatorUse] = field(default_factory=list)
    ranks: int = 1
    wrappings: list[Wrapping] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`, also by way of JSON."""
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
