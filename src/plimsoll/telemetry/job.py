"""This process's place in its job: what PyTorch knows of it, or what its launcher said."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress

from plimsoll.recordings.process_place import ProcessPlace


def place_of_process() -> ProcessPlace:
    """As far as it is known now: a program may join its job later."""
    rank, world_size = _joined() or (launched_as("RANK"), launched_as("WORLD_SIZE"))
    return ProcessPlace(rank, launched_as("LOCAL_RANK"), world_size, socket.gethostname())


def launched_as(name: str) -> int | None:
    """A number that the launcher gave this process, such as RANK."""
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else None


def _joined() -> tuple[int, int] | None:
    distributed = sys.modules.get("torch.distributed")
    with suppress(AttributeError, RuntimeError, ValueError):  # while it is imported, or ends
        if distributed is not None and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
    return None
