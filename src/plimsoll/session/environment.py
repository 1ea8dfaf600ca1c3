"""The recording that PLIMSOLL_RECORD asks for; without it nothing is imported."""

from __future__ import annotations

import os


def record_if_asked(*_: object) -> None:
    """Record from now on, if the environment says so."""
    if os.environ.get("PLIMSOLL_RECORD"):
        from plimsoll.session.record import record_from_environment

        record_from_environment()
