"""The cards that a program's processes use, each with what all of them took together.

Each process notes in the file of a card what it has of it, from its first use on. So the file also
knows of processes that were killed.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll import _core
from plimsoll.base.telemetry.job import launched_as

if TYPE_CHECKING:
    from collections.abc import Callable

_FILE = re.compile(r"(\d+)-(\d+)-.*\.card")


@dataclass(frozen=True)
class Card:
    """A card, and the memory of it that the processes of a program had.

    Attributes:
        host: The number of the card's machine.
        device: The card there.
        takes: By process, the most that nvidia-smi would show of it, in bytes.
        together_bytes: The most that all of them had at the same time.
        at_most_bytes: The most that they might have had at the same time, had they taken turns
            otherwise.
        is_complete: Whether every process could note what it has.
    """

    host: int
    device: int
    takes: dict[int, int]
    together_bytes: int
    at_most_bytes: int
    is_complete: bool


def card_files(folder: str) -> Callable[[int], str]:
    """Returns what names the file of a GPU's card, by the GPU's number in the process."""

    def file_of(device: int) -> str:
        host = launched_as("GROUP_RANK") or 0
        number, name = _card_of(device)
        return str(Path(folder) / f"{host}-{number}-{name}.card")

    return file_of


def number_of_card(device: int) -> int:
    """The number in its machine of a card that this process uses."""
    return _card_of(device)[0]


def _card_of(device: int) -> tuple[int, str]:
    """A card's number in its machine, and what else tells it apart.

    CUDA_VISIBLE_DEVICES gives the cards of a process other numbers than they have in the machine.
    """
    text = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    visible = [each.strip() for each in text.split(",")] if text else []
    if not visible:
        return device, ""
    if device >= len(visible):  # the simulation gives a process cards that it would not see
        return device, "unseen"
    name = visible[device]
    return (int(name), "") if re.fullmatch("[0-9]+", name) else (0, re.sub(r"[^\w-]", "_", name))


def read_cards(folder: str) -> dict[str, Card]:
    """All cards that were used, by the names of their files."""
    cards = {}
    for path in sorted(Path(folder).glob("*.card")):
        found = _FILE.fullmatch(path.name)
        assert found is not None
        file = _core.SharedCard(str(path))
        takes: dict[int, int] = {}
        for process, most in file.users:
            if most:  # else it only asked NVML about the card
                takes[process] = max(most, takes.get(process, 0))
        cards[path.name] = Card(
            host=int(found[1]),
            device=int(found[2]),
            takes=takes,
            together_bytes=file.together,
            at_most_bytes=file.at_most,
            is_complete=file.is_complete,
        )
    return cards
