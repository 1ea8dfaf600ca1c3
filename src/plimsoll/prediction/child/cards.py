"""The cards that a program's processes use, and the memory of all processes on each card.

Each card has a file. A process that uses a card writes into the card's file how much memory the
process has on this card, and keeps the figure up to date. So the file also has the memory of
processes that were killed.
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
    """A card, and the program's memory on it.

    Attributes:
        host: The number of the card's machine.
        device: The card's number on that machine.
        takes: For each process id, the most that nvidia-smi would show of the process, in bytes.
        together_bytes: The most that all processes had at the same time.
        at_most_bytes: The most that all processes would have had at the same time if their peaks
            coincided. They may coincide if the processes run at other speeds.
        is_complete: Whether every process could write its use.
    """

    host: int
    device: int
    takes: dict[int, int]
    together_bytes: int
    at_most_bytes: int
    is_complete: bool


def card_files(folder: str) -> Callable[[int], str]:
    """Returns a function that finds a card's file by the GPU's number in this process."""

    def file_of(device: int) -> str:
        host = launched_as("GROUP_RANK") or 0
        number, name = _card_of(device)
        return str(Path(folder) / f"{host}-{number}-{name}.card")

    return file_of


def number_of_card(device: int) -> int:
    """Returns the number that the machine gives to the card `device` of this process."""
    return _card_of(device)[0]


def _card_of(device: int) -> tuple[int, str]:
    """Returns a card's number on the machine, and a suffix for the card's file name.

    CUDA_VISIBLE_DEVICES renumbers the cards of a process. If this variable names the card by its
    UUID, the number is unknown, and the function returns 0 and the UUID. If the variable has no
    entry for the card, the suffix is "unseen". Otherwise the suffix is empty.
    """
    text = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    visible = [each.strip() for each in text.split(",")] if text else []
    if not visible:
        return device, ""
    if device >= len(visible):  # the simulation shows more cards than CUDA_VISIBLE_DEVICES has
        return device, "unseen"
    name = visible[device]
    return (int(name), "") if re.fullmatch("[0-9]+", name) else (0, re.sub(r"[^\w-]", "_", name))


def read_cards(folder: str) -> dict[str, Card]:
    """Returns all used cards, by the names of their files."""
    cards = {}
    for path in sorted(Path(folder).glob("*.card")):
        found = _FILE.fullmatch(path.name)
        assert found is not None
        file = _core.SharedCard(str(path))
        takes: dict[int, int] = {}
        for process, most in file.users:
            if most:  # a process with 0 bytes here only asked NVML about the card
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
