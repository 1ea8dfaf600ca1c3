"""Answers for the simulated cards when a program runs `nvidia-smi`.

In place of `nvidia-smi`, plimsoll starts a Python process that prints the answer. If this file does
not support the query, the process fails, as `nvidia-smi` does on a machine without a driver.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from plimsoll.base.units import MiB
from plimsoll.torch.simulated.simulated_nvml import DRIVER, bus_id, card_uuid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.torch.simulated.simulation import Simulation

_QUERY = "--query-gpu="
_FORMAT = "--format="
_MEMORY = ("memory.total", "memory.used", "memory.free")
_PRINT = "import sys; sys.stdout.write(sys.argv[1])"
_FAIL = "import sys; sys.exit(sys.argv[1])"


def answer_nvidia_smi(simulation: Simulation) -> None:
    """Replaces `nvidia-smi`, when the program starts it, by a process that prints the answer.

    Args:
        simulation: The cards.
    """
    start = subprocess.Popen.__init__
    answer = simulation.watchers.guarded("nvidia-smi of simulated cards", _printing)

    def started(self: Any, args: Any, *further: Any, **named: Any) -> None:
        asked = _asked(args)
        if asked is not None:
            printing = answer(simulation, asked)
            if printing is not None:
                args, named["shell"] = printing, False
        start(self, args, *further, **named)

    subprocess.Popen.__init__ = started  # type: ignore[method-assign]


def _asked(command: Any) -> list[str] | None:
    """Returns the options of a command that runs `nvidia-smi`; None for any other command."""
    # `Popen` also takes iterators. If this function read one, `Popen` would find it exhausted.
    if not isinstance(command, str | list | tuple):
        return None
    try:
        words = shlex.split(command) if isinstance(command, str) else list(map(str, command))
    except ValueError:
        return None
    if not words or PurePath(words[0]).name != "nvidia-smi" or "|" in words:
        return None
    return words[1:]


def _printing(simulation: Simulation, options: list[str]) -> list[str]:
    """Returns a command that prints the answer, or that fails if the query is not supported."""
    fields = [each.removeprefix(_QUERY) for each in options if each.startswith(_QUERY)]
    form = [each.removeprefix(_FORMAT) for each in options if each.startswith(_FORMAT)]
    forms = set(form[0].split(",")) if form else set()
    known = _facts(simulation, 0)
    names = [name.strip() for name in fields[0].split(",")] if fields else []
    if len(options) != 2 or "csv" not in forms or not names or set(names) - set(known):
        return [sys.executable, "-c", _FAIL, "nvidia-smi of simulated cards: not supported"]
    if set(names) & set(_MEMORY):
        simulation.note_size_read()
        for device in range(len(simulation.profiles)):
            simulation.share_card(device)
    unit = "" if "nounits" in forms else " MiB"
    lines = [] if "noheader" in forms else [", ".join(names)]
    for device in range(len(simulation.profiles)):
        facts = _facts(simulation, device)
        values = [facts[name] + (unit if name in _MEMORY else "") for name in names]
        lines.append(", ".join(values))
    return [sys.executable, "-c", _PRINT, "".join(f"{line}\n" for line in lines)]


def _facts(simulation: Simulation, device: int) -> dict[str, str]:
    card = simulation.profiles[device]
    free, total = simulation.card_memory(device)
    sizes: Sequence[int] = (total, total - free, free)
    return {
        "index": str(device),
        "name": card.full_name,
        "gpu_name": card.full_name,
        "count": str(len(simulation.profiles)),
        "uuid": f"GPU-{card_uuid(device)}",
        "gpu_uuid": f"GPU-{card_uuid(device)}",
        "pci.bus_id": bus_id(device),
        "driver_version": DRIVER,
        "compute_cap": ".".join(map(str, card.compute_capability)),
        **{name: str(size // MiB) for name, size in zip(_MEMORY, sizes, strict=True)},
    }
