"""Starts the recording that PLIMSOLL_RECORD asks for; imports nothing if it is not set."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


def record_if_asked(torch: ModuleType) -> None:
    """Starts recording at the first use of CUDA, if PLIMSOLL_RECORD is set.

    A process that does not use CUDA, such as a launcher, therefore leaves no recording.
    """
    torch.cuda._lazy_call(_record)


def _record() -> None:
    if os.environ.get("PLIMSOLL_RECORD"):
        from plimsoll.torch.session.record import record_from_environment

        record_from_environment()
