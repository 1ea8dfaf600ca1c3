"""`plimsoll predict`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plimsoll.units import format_size

if TYPE_CHECKING:
    from rich.console import Console

    from plimsoll.predict import Prediction

_MOST_ASSUMPTIONS = 12


def predict(
    script: Annotated[Path, typer.Argument(help="A Python script that uses CUDA.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="The script's arguments.")
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(help="A card, such as 'RTX 4090' or A100:40GiB; several make a table."),
    ] = None,
    gpus: Annotated[int, typer.Option(help="How many of them.")] = 1,
    driver: Annotated[str, typer.Option(help="linux, or wddm (Windows).")] = "linux",
    conf: Annotated[str, typer.Option(help="As PYTORCH_CUDA_ALLOC_CONF.")] = "",
    allocator: Annotated[str, typer.Option(help="native, elastic or uncached.")] = "native",
    policy: Annotated[
        str | None,
        typer.Option(help="When dedicated memory is spent: strict fails, spill uses shared."),
    ] = None,
    dedicated: Annotated[
        str | None, typer.Option(help="The most of the card's own memory, such as 6GiB.")
    ] = None,
    shared: Annotated[
        str | None, typer.Option(help="The most of the host's memory to spill into.")
    ] = None,
    host_memory: Annotated[
        str | None, typer.Option(help="Of the simulated machine, such as 64GiB; half is shared.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One object a card, one a line.")] = False,
) -> None:
    """Run a CUDA script where there is no GPU, and say what memory it will need.

    The script's own output goes to stderr. Exit status 1: it does not fit.
    """
    from plimsoll.predict import predict as run

    results = [
        run(
            script, arguments or [], gpu=name, gpus=gpus, driver=driver, conf=conf,  # type: ignore[arg-type]
            allocator=allocator, policy=policy, dedicated=dedicated, shared=shared,  # type: ignore[arg-type]
            host_memory=host_memory,
        )
        for name in gpu or ["H100"]
    ]  # fmt: skip
    if as_json:
        for result in results:
            print(json.dumps(result.to_dict()))
    else:
        _show(results)
    if not all(result.fits for result in results):
        raise typer.Exit(1)


def _show(results: list[Prediction]) -> None:
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 120)
    first = results[0]
    if not first.uses_cuda:
        console.print(f"{first.script} never touches CUDA: it needs no GPU memory.")
        return
    if len(results) == 1:
        _show_one(console, first)
    else:
        _show_table(console, results)
    if sys.stderr.isatty():
        print(
            f"next: plimsoll fit {first.script} --vary=--batch-size --gpu '{first.gpu}'",
            file=sys.stderr,
        )


def _show_one(console: Console, result: Prediction) -> None:
    verdict = "fits" if result.fits else "does not fit"
    where = result.gpu
    if result.shared is not None:
        where += f" with {format_size(result.shared.total_bytes)} of shared memory"
    room = format_size(abs(result.headroom_bytes))
    left = f"{room} to spare" if result.headroom_bytes >= 0 else f"{room} too little"
    console.print(f"{result.script} [bold]{verdict}[/bold] on {where}: {left}")
    if not result.fits and result.headroom_bytes >= 0:
        console.print("  (the card would hold the peak, but not in the pieces that are free)")
    console.print(f"  peak allocated   {format_size(result.peak_allocated_bytes):>12}")
    console.print(f"  peak reserved    {format_size(result.peak_reserved_bytes):>12}")
    console.print(
        f"  nvidia-smi shows {format_size(result.device_used_bytes):>12}"
        f" of {format_size(result.total_bytes)}"
    )
    console.print("\nAt the peak:")
    for name, size in sorted(result.by_category.items(), key=lambda item: -item[1]):
        if size:
            share = 100 * size / max(1, result.peak_allocated_bytes)
            console.print(f"  {name.replace('_', ' '):16} {format_size(size):>12}  {share:4.1f}%")
    console.print("\nLines that hold the most then:")
    for line in result.top_lines[:6]:
        console.print(f"  {format_size(line.bytes):>12}  {line.line}")
    _show_shared(console, result)
    _show_steps(console, result)
    _show_cards(console, result)
    _show_assumptions(console, result)
    console.print(f"\n{result.events:,} events in {result.seconds:.1f} s, PyTorch {result.torch}")


def _show_shared(console: Console, result: Prediction) -> None:
    if result.shared is None:
        return
    by = "Windows' driver, silently" if result.driver == "wddm" else "the allocator"
    until = "" if result.fits else ", until both memories were spent"
    is_placed = result.shared.peak_allocated_bytes and not result.shared.num_spills
    console.print("\nPlaced by the program:" if is_placed else f"\nSpilled by {by}{until}:")
    for text in result.shared.lines():
        console.print(f"  {text}")
    if not result.shared.peak_allocated_bytes:
        return
    console.print("\nIn shared memory, when it held the most:")
    for name, size in sorted(result.shared_by_category.items(), key=lambda item: -item[1]):
        if size:
            console.print(f"  {name.replace('_', ' '):16} {format_size(size):>12}")
    for line in result.shared_lines[:6]:
        console.print(f"  {format_size(line.bytes):>12}  {line.line}")


def _show_steps(console: Console, result: Prediction) -> None:
    peaks = result.step_peaks_bytes
    if len(peaks) < 2:
        return
    if len(set(peaks[-2:])) == 1:
        same = len(peaks) - next(
            (i for i, peak in enumerate(reversed(peaks)) if peak != peaks[-1]), len(peaks)
        )
        console.print(f"\nSteady from step {same + 1} of {len(peaks)} on.")
    else:
        shown = ", ".join(format_size(peak) for peak in peaks[-4:])
        console.print(f"\nNot steady: the last steps peaked at {shown}.")


def _show_cards(console: Console, result: Prediction) -> None:
    fitting = [card for card in result.other_gpus if card.fits]
    if not fitting:
        return
    fitting.sort(key=lambda card: (card.total_bytes, card.gpu))
    names = ", ".join(card.gpu for card in fitting[:8])
    alone = " without shared memory" if result.shared else ""
    console.print(
        f"\nFits{alone} (kernels as on {result.gpu}): {names}" + (", …" if len(fitting) > 8 else "")
    )
    failing = [card.gpu for card in result.other_gpus if not card.fits]
    if failing:
        console.print(
            f"Does not fit: {', '.join(failing[:8])}" + (", …" if len(failing) > 8 else "")
        )


def _show_assumptions(console: Console, result: Prediction) -> None:
    if not result.assumptions:
        console.print("\nNothing was assumed.")
        return
    console.print("\nAssumed:")
    by_text: dict[str, list[str]] = {}
    for assumed in result.assumptions:
        where = f" ({assumed.line})" if assumed.line and "placeholder" in assumed.what else ""
        by_text.setdefault(assumed.what, []).append(assumed.operation + where)
    for text, operations in list(by_text.items())[:_MOST_ASSUMPTIONS]:
        shown = ", ".join(operations[:4]) + (
            f" and {len(operations) - 4} more" if len(operations) > 4 else ""
        )
        console.print(f"  {text}: {shown}")


def _show_table(console: Console, results: list[Prediction]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("card")
    for name in ("memory", "allocated", "reserved", "used", "headroom"):
        table.add_column(name, justify="right")
    table.add_column("fits")
    for result in results:
        table.add_row(
            result.gpu,
            format_size(result.total_bytes),
            format_size(result.peak_allocated_bytes),
            format_size(result.peak_reserved_bytes),
            format_size(result.device_used_bytes),
            ("-" if result.headroom_bytes < 0 else "") + format_size(abs(result.headroom_bytes)),
            "yes" if result.fits else "no",
        )
    console.print(table)
