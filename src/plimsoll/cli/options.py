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
    typer.Argument(
        metavar="SCRIPT", help="A Python script that uses CUDA, or a module if -m is given."
    ),
]
NoScript = Annotated[
    str | None,
    typer.Argument(
        metavar="SCRIPT",
        help="A Python script that uses CUDA, or a module if -m is given. Leave SCRIPT out if "
        "--model is given.",
        show_default=False,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="A model: its name on the Hugging Face Hub or in timm, its config.json, or the folder "
        "of its config.json.",
        metavar="MODEL",
    ),
]
RecipeName = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        help="What plimsoll does with the model: sft (trains all weights, in bfloat16), lora "
        "(trains adapters), qlora (trains adapters of 4-bit weights), generate (generates "
        "text) or pretrain (trains in float32 under autocast). The recipe's other options go "
        "after --.",
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
        show_default="2048 or the model's limit, whichever is less",
    ),
]
SaveRecipe = Annotated[
    Path | None,
    typer.Option(
        help="Write the recipe's script to this file, and run the file. You can change the file "
        "for later runs.",
        metavar="FILE",
    ),
]
Module = Annotated[bool, typer.Option("-m", help="Run SCRIPT as a module, like python -m.")]
Gpu = Annotated[
    list[str] | None,
    typer.Option(
        help="A card that `plimsoll gpus` lists, as in --gpu 'RTX 4090'. NAME:SIZE gives the card "
        "another memory size, as in --gpu A100:40GiB. Repeat --gpu for several cards.",
        metavar="NAME",
        show_default=DEFAULT_GPU,
    ),
]
Gpus = Annotated[
    int | None,
    typer.Option(
        help="How many cards the simulated machine has.",
        metavar="N",
        show_default="1; for a job, one for each rank of a machine",
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
        help="How many ranks the job has in all. --nproc-per-node says how many of them each "
        "machine runs; without it, a machine runs eight.",
        metavar="N",
    ),
]
Ranks = Annotated[
    str | None,
    typer.Option(
        help="The ranks that plimsoll runs: distinct (one of each group of ranks that do the "
        "same), all, or a list of ranks, such as 0,64,448.",
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
        help="The allocator's settings, in the format of PYTORCH_CUDA_ALLOC_CONF.",
        metavar="SETTINGS",
    ),
]
Allocator = Annotated[
    str,
    typer.Option(
        help="The allocator: native (plimsoll's, with PyTorch's rules), elastic (plimsoll's own), "
        "uncached (each request calls the driver), or wheel (the code in PyTorch's own package).",
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
        help="How much of each card's own memory the program may use at most, such as 6GiB.",
        metavar="SIZE",
    ),
]
Shared = Annotated[
    str | None,
    typer.Option(help="How much host memory the program may spill into at most.", metavar="SIZE"),
]
Used = Annotated[
    str | None,
    typer.Option(
        help="Memory that other programs use on each card: a size, as in 3GiB, or auto (the memory "
        "now in use on this machine's first GPU).",
        metavar="SIZE",
    ),
]
RulesOf = Annotated[
    str | None,
    typer.Option(
        "--version",
        help="Follow the allocator rules of this PyTorch version, as in 2.11.",
        show_default="the recorded one",
        metavar="VERSION",
    ),
]
ReadMemory = Annotated[
    str | None,
    typer.Option(
        help="Use at most this much host memory to read a file, as in 8GiB.",
        metavar="SIZE",
        show_default="1 GiB or eight times the file's size, whichever is more",
    ),
]
Values = Annotated[
    str,
    typer.Option(
        help="Which values of tensors plimsoll computes: auto (those that are cheap to compute), "
        "real (all), or none (only those that decide tensor sizes and control flow).",
        metavar="NAME",
    ),
]
Unknown = Annotated[
    str,
    typer.Option(
        help="What plimsoll assumes for a value that it did not compute, where a tensor's size "
        "depends on the value: balanced (a medium size), seed:N (random, from the seed N), most "
        "(the largest size), or least (the smallest size).",
        metavar="NAME",
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(
        help="End training loops (of a Trainer, or over a DataLoader) after this number of steps. "
        "The script then continues with the code after the loop.",
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
        help="Keep the files that the script writes, and let the script reach experiment trackers "
        "and model hubs.",
    ),
]
Network = Annotated[
    bool,
    typer.Option(
        "--network",
        help="Let the script reach other machines. plimsoll still discards the files that the "
        "script writes.",
    ),
]
HostMemory = Annotated[
    str | None,
    typer.Option(
        help="The simulated machine's host memory, such as 64GiB. Programs can spill into half of "
        "this memory.",
        metavar="SIZE",
    ),
]
RankPattern = Annotated[
    str | None,
    typer.Option(
        help="A regular expression that finds a file's rank in the file's path. The rank is "
        "the group named rank, or the only group. A group named host matches the host's name.",
        metavar="REGEX",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="The address of a Ray cluster that reads the folder's files, as in ray://head:10001.",
        metavar="ADDRESS",
    ),
]

PlanToFollow = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        metavar="FILE",
        help="A plan that --write-plan wrote. The elastic allocator places large tensors as in the "
        "plan.",
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
    """Returns a decorator that gives a verb these options on the command line.

    The options replace the verb's parameter `simulation`. The verb's function gets their values in
    this parameter, as a dictionary by the options' names.

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
