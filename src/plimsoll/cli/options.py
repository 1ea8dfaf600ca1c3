"""Options that several verbs have alike."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DEFAULT_GPU = "H100"

Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="[-- ARGS]", help="The script's arguments.")
]
Script = Annotated[str, typer.Argument(help="A Python script that uses CUDA, or with -m a module.")]
NoScript = Annotated[
    str | None,
    typer.Argument(
        metavar="[SCRIPT]",
        help="A Python script that uses CUDA, or with -m a module; none with --model.",
        show_default=False,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="Instead of SCRIPT: a folder with a model's config.json, that file, or the model's "
        "name on the hub or of timm's.",
        metavar="MODEL",
    ),
]
RecipeName = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        help="What is done with the model: sft, lora, qlora, generate or pretrain; its further "
        "options go after --.",
        metavar="NAME",
    ),
]
BatchSize = Annotated[int | None, typer.Option(help="Of the recipe.", show_default="1")]
SeqLen = Annotated[
    int | None,
    typer.Option(help="Of the recipe, in tokens.", show_default="2048, or the model's most"),
]
SaveRecipe = Annotated[
    Path | None,
    typer.Option(help="Write the recipe's script out, to be changed, and run it.", metavar="FILE"),
]
Module = Annotated[bool, typer.Option("-m", help="SCRIPT is a module's name, as in python -m.")]
Gpu = Annotated[
    list[str] | None,
    typer.Option(
        help="A card, such as 'RTX 4090' or A100:40GiB (all: plimsoll gpus); several are answered "
        "each.",
        show_default=DEFAULT_GPU,
    ),
]
Gpus = Annotated[
    int | None,
    typer.Option(help="How many cards the machine has.", show_default="1, or one a rank"),
]
NprocPerNode = Annotated[
    int | None,
    typer.Option(help="SCRIPT is a job of so many processes on a machine, as torchrun has it."),
]
World = Annotated[
    int | None, typer.Option(help="How many ranks the job has in all, on machines of eight.")
]
Ranks = Annotated[
    str | None,
    typer.Option(help="Those that run: distinct, one of each role, or numbers as 0,64,448."),
]
Nnodes = Annotated[int, typer.Option(help="How many machines that job has.")]
Driver = Annotated[str, typer.Option(help="linux, or wddm (Windows).")]
Conf = Annotated[str, typer.Option(help="As PYTORCH_CUDA_ALLOC_CONF.")]
Allocator = Annotated[str, typer.Option(help="native, elastic, uncached or wheel (PyTorch's own).")]
Policy = Annotated[
    str | None,
    typer.Option(help="When dedicated memory is spent: strict fails, spill uses shared."),
]
Dedicated = Annotated[
    str | None, typer.Option(help="The most of each card's own memory, such as 6GiB.")
]
Shared = Annotated[str | None, typer.Option(help="The most of the host's memory to spill into.")]
Used = Annotated[
    str | None,
    typer.Option(
        help="What others already have of each card, such as 3GiB; auto: what the driver says.",
        metavar="SIZE",
    ),
]
ReadMemory = Annotated[
    str | None,
    typer.Option(
        help="What a file may take in memory when it is read, such as 8GiB; by default 1 GiB, or "
        "eight times the file.",
        metavar="SIZE",
    ),
]
Values = Annotated[
    str,
    typer.Option(
        help="auto: compute the values of tensors where that is cheap; real: all; none: only the "
        "few that lengths and control flow hang on."
    ),
]
Unknown = Annotated[
    str,
    typer.Option(
        help="What data is like that nobody computes: balanced, most, least (of what sizes hang "
        "on), or seed:N."
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(
        help="End training loops after so many steps, those of a Trainer or over a DataLoader; the "
        "rest of the script runs.",
        metavar="N",
    ),
]
AtMostEvents = Annotated[int | None, typer.Option(help="Stop the script after so many events.")]
KeepWrites = Annotated[
    bool,
    typer.Option(
        "--keep-writes",
        help="What the script writes stays, and it may talk to trackers and hubs.",
    ),
]
Network = Annotated[
    bool,
    typer.Option(
        "--network",
        help="The script may reach other machines; what it writes is thrown away all the same.",
    ),
]
HostMemory = Annotated[
    str | None, typer.Option(help="Of the simulated machine, such as 64GiB; half is shared.")
]
RankPattern = Annotated[
    str | None,
    typer.Option(
        help="Of a folder's files: a regular expression whose group is the rank, or the one named "
        "rank; another one named host is the host.",
        metavar="REGEX",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="Of a Ray cluster that is to do the work, such as ray://head:10001.", metavar="ADDRESS"
    ),
]

PlanToFollow = Annotated[
    Path | None,
    typer.Option("--plan", metavar="FILE", help="A plan of places that elastic follows."),
]

Simulation = dict[str, Any]
"""Options of a simulation, by name."""
SIMULATION: Mapping[str, tuple[Any, Any]] = {
    "gpus": (Gpus, None),
    "nproc_per_node": (NprocPerNode, None),
    "nnodes": (Nnodes, 1),
    "world": (World, None),
    "ranks": (Ranks, None),
    "driver": (Driver, "linux"),
    "conf": (Conf, ""),
    "allocator": (Allocator, "native"),
    "plan": (PlanToFollow, None),
    "policy": (Policy, None),
    "dedicated": (Dedicated, None),
    "used": (Used, None),
    "shared": (Shared, None),
    "host_memory": (HostMemory, None),
    "values": (Values, "auto"),
    "unknown": (Unknown, "balanced"),
    "steps": (Steps, None),
    "at_most_events": (AtMostEvents, None),
    "keep_writes": (KeepWrites, False),
    "network": (Network, False),
}
"""The fields of `plimsoll.prediction.options.Options`, but the card: type and default of each."""


def takes_simulation(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb options of `SIMULATION` where its parameter `simulation` stands.

    The verb gets them as one dictionary, by name.
    """

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(verb, eval_str=True).parameters.values():
            if parameter.name != "simulation":
                parameters.append(parameter)
                continue
            for name in names:
                annotation, default = SIMULATION[name]
                kind = parameter.kind
                parameters.append(
                    inspect.Parameter(name, kind, default=default, annotation=annotation)
                )

        @functools.wraps(verb)
        def command(**given: Any) -> None:
            simulation = {name: given.pop(name) for name in names}
            verb(**given, simulation=simulation)

        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return decorate
