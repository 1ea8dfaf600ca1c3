"""Starts what the environment asks for: PLIMSOLL_METRICS and PLIMSOLL_RECORD.

It imports nothing for a variable that is not set.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


def watch_if_asked(torch: ModuleType) -> None:
    """Starts metrics and a recording at the first use of CUDA, if the environment asks for them.

    A process that does not use CUDA, such as a launcher, therefore takes no port and leaves no
    recording.
    """
    torch.cuda._lazy_call(_watch)


def _watch() -> None:
    if os.environ.get("PLIMSOLL_METRICS"):
        from plimsoll.base.telemetry.metrics import serve_from_environment

        serve_from_environment()
    if os.environ.get("PLIMSOLL_RECORD"):
        from plimsoll.torch.session.record import record_from_environment

        record_from_environment()
