"""Tells in the report which data replaces missing files, and which line requested the files."""

from __future__ import annotations

import sys

from plimsoll.recordings.analysis.lines import is_users, short_path
from plimsoll.torch.simulated.compiled.assumptions import assume


def tell_made_up(what: str) -> None:
    """Tells in the report that data is made up, and which line of the user's code requested it.

    Args:
        what: A description of the data and of how it is made up.
    """
    assume(_line(), what)


def assume_made_up_weights(engine: str) -> None:
    """Tells in the report that a serving engine's weights are made up.

    Args:
        engine: The engine's package.
    """
    assume(
        engine,
        "plimsoll made up the weights, in the sizes of the model's configuration, as "
        'load_format="dummy" does',
    )


def _line() -> str:
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name, line = frame.f_code.co_filename, frame.f_lineno
        if is_users((name, line, frame.f_code.co_name)):
            return f"{short_path(name)}:{line}"
        frame = frame.f_back
    return "a library"
