"""Combines the host memory of all processes of a program."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.base.errors import InputError
from plimsoll.base.files import NewFile
from plimsoll.prediction.host_use import TORCH, HostUse, host_peak

if TYPE_CHECKING:
    from plimsoll.prediction.child.host_watch import HostWatch
    from plimsoll.prediction.request import Request


def tell_host_use(watch: HostWatch, folder: str) -> None:
    """Writes the host memory use of this process to a new file in `folder`.

    The program started this process. The program's first process reads the file.
    """
    use = watch.stop()
    if use is None:
        return
    path = Path(folder) / f"{os.getpid()}-{secrets.token_hex(4)}.host"
    with suppress(InputError), NewFile(path) as file:  # fails if the folder is gone
        file.write(json.dumps(asdict(use)).encode())


def host_figures(own: HostUse | None, folder: str, request: Request) -> dict[str, Any]:
    """Returns a prediction's entries about host memory.

    The result is empty if `own` is unknown, or if only some of a job's ranks ran.

    Args:
        own: The host memory of the program's first process; None if unknown.
        folder: The folder with the reports of the processes that the program started.
        request: The request for the prediction.
    """
    if own is None or request.ranks is not None:
        return {}
    if request.nproc_per_node is not None:  # the process of torchrun itself imports PyTorch too
        own = replace(own, own_bytes=own.own_bytes + TORCH.own_bytes)
    told = [HostUse(**json.loads(file.read_text())) for file in Path(folder).glob("*.host")]
    found = host_peak([own, *told])
    assert found is not None
    return {"host_peak_bytes": found[0], "host_peak_range_bytes": found[1]}
