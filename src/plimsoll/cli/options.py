"""Options that several verbs share."""

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
    list[str] | None, typer.Argument(metavar="-- ARGS", help="The script's arguments.")
]
Script = Annotated[
    str,
    typer.Argument(metavar="SCRIPT", help="A Python script that uses CUDA, or with -m a module."),
]
NoScript = Annotated[
    str | None,
    typer.Argument(
        metavar="SCRIPT",
        help="A Python script that uses CUDA, or with -m a module. Leave it out with --model.",
        show_default=False,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="A model's name on Hugging Face's hub or in timm, its config.json, or a folder with "
        "that file.",
        metavar="MODEL",
    ),
]
RecipeName = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        help="What plimsoll does with the model: sft, lora, qlora, generate or pretrain. The "
        "recipe's other options go after --.",
        metavar="NAME",
    ),
]
BatchSize = Annotated[
    int | None, typer.Option(help="The recipe's batch size.", metavar="N", show_default="1")
]
SeqLen = Annotated[
    int | None,
    typer.Option(
        help="The recipe's sequence length, in tokens.",
        metavar="N",
        show_default="2048, or the model's limit if that is less",
    ),
]
SaveRecipe = Annotated[
    Path | None,
    typer.Option(
        help="Write the recipe's script to this file, where you can change it, and run it.",
        metavar="FILE",
    ),
]
Module = Annotated[bool, typer.Option("-m", help="SCRIPT is a module's name, as in python -m.")]
Gpu = Annotated[
    list[str] | None,
    typer.Option(
        help="A card that `plimsoll gpus` lists, such as 'RTX 4090', or such a card with another "
        "memory size, such as A100:40GiB. May be repeated.",
        metavar="NAME",
        show_default=DEFAULT_GPU,
    ),
]
Gpus = Annotated[
    int | None,
    typer.Option(
        help="How many cards the simulated machine has.",
        metavar="N",
        show_default="1, or one for each rank",
    ),
]
NprocPerNode = Annotated[
    int | None,
    typer.Option(
        help="Run SCRIPT as a job with this number of processes on each machine, as torchrun does.",
        metavar="N",
    ),
]
World = Annotated[
    int | None,
    typer.Option(
        help="How many ranks the job has in all: eight on each machine, or --nproc-per-node.",
        metavar="N",
    ),
]
Ranks = Annotated[
    str | None,
    typer.Option(
        help="The ranks that plimsoll runs: distinct (one of each role), all, or numbers such as "
        "0,64,448.",
        metavar="RANKS",
    ),
]
Nnodes = Annotated[int, typer.Option(help="How many machines the job has.", metavar="N")]
Driver = Annotated[
    str, typer.Option(help="The driver to simulate: linux, or wddm (Windows).", metavar="NAME")
]
Conf = Annotated[
    str,
    typer.Option(
        help="The allocator's settings, as in PYTORCH_CUDA_ALLOC_CONF.",
        metavar="SETTINGS",
    ),
]
Allocator = Annotated[
    str,
    typer.Option(
        help="native (follows PyTorch's rules), elastic (plimsoll's own), uncached (each request "
        "calls the driver), or wheel (the code of PyTorch's allocator itself).",
        metavar="NAME",
    ),
]
Policy = Annotated[
    str | None,
    typer.Option(
        help="What happens to a request when the card is full: strict (it fails), or spill (it is "
        "served from host memory).",
        metavar="NAME",
    ),
]
Dedicated = Annotated[
    str | None,
    typer.Option(
        help="The most of each card's own memory that the program may use, such as 6GiB.",
        metavar="SIZE",
    ),
]
Shared = Annotated[
    str | None,
    typer.Option(help="The most host memory that the program may spill into.", metavar="SIZE"),
]
Used = Annotated[
    str | None,
    typer.Option(
        help="Memory that other programs use on each card, such as 3GiB. auto takes what is in use "
        "on this machine's first GPU.",
        metavar="SIZE",
    ),
]
ReadMemory = Annotated[
    str | None,
    typer.Option(
        help="The most host memory that plimsoll takes to read a file, such as 8GiB.",
        metavar="SIZE",
        show_default="1 GiB, or eight times the file's size if that is more",
    ),
]
Values = Annotated[
    str,
    typer.Option(
        help="Which tensors' values plimsoll computes: auto (those that are cheap), real (all), or "
        "none (no more than lengths and control flow need).",
        metavar="NAME",
    ),
]
Unknown = Annotated[
    str,
    typer.Option(
        help="How plimsoll makes up values that it did not compute: balanced (values "
        "that make tensors of medium size), seed:N (random), most (of the largest size), or least "
        "(of the smallest size).",
        metavar="NAME",
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(
        help="End training loops (of a Trainer, or over a DataLoader) after this number of steps. "
        "The rest of the script runs.",
        metavar="N",
    ),
]
AtMostEvents = Annotated[
    int | None,
    typer.Option(help="Stop the script after this number of memory events.", metavar="N"),
]
KeepWrites = Annotated[
    bool,
    typer.Option(
        "--keep-writes",
        help="Keep the files that the script writes, and let the script reach trackers and hubs.",
    ),
]
Network = Annotated[
    bool,
    typer.Option(
        "--network",
        help="Let the script reach other machines. The files that it writes are still discarded.",
    ),
]
HostMemory = Annotated[
    str | None,
    typer.Option(
        help="The simulated machine's host memory, such as 64GiB. Programs can spill into half of "
        "it.",
        metavar="SIZE",
    ),
]
RankPattern = Annotated[
    str | None,
    typer.Option(
        help="A regular expression for a file's path. The expression's group named rank, or its "
        "only group, matches the rank; a group named host matches the host.",
        metavar="REGEX",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(help="Run on this Ray cluster, such as ray://head:10001.", metavar="ADDRESS"),
]

PlanToFollow = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        metavar="FILE",
        help="A file that --write-plan wrote. The elastic allocator places tensors as it says.",
    ),
]

Simulation = dict[str, Any]
"""The values of a simulation's options, by the option's name."""
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
"""The type and the default of each simulation option, by the option's name.

The names are those of the fields of `plimsoll.prediction.options.Options`, without `gpu`.
"""


def takes_simulation(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a verb: replaces its parameter `simulation` by the options with these names.

    The verb's function still gets one dictionary `simulation`, with the options' values by name.

    Args:
        names: Keys of `SIMULATION`.
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
