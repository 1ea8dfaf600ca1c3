"""Finds the place where a script wraps its model for several ranks."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from plimsoll.prediction.fitting.changes.sites import last_name
from plimsoll.prediction.fitting.script_text import CannotChangeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.prediction.fitting.script_text import ScriptText
    from plimsoll.prediction.survey import Survey, Wrapping

DATA_PARALLEL = "DistributedDataParallel"
FULLY_SHARDED = "FullyShardedDataParallel"


def only_wrapping(survey: Survey, kind: str) -> Wrapping | None:
    """Returns a script's only wrapping, if its kind is `kind`.

    Returns None if the script has no wrapping or several, if its wrapping has another kind, or if
    no line of the script makes the wrapping.
    """
    if len(survey.wrappings) != 1:
        return None
    (wrapping,) = survey.wrappings
    return wrapping if wrapping.kind == kind and wrapping.made is not None else None


def find_wrapping(script: ScriptText, wrapping: Wrapping) -> tuple[ast.Call, ast.stmt]:
    """Returns the call that wraps the model, and the statement that contains this call.

    Raises:
        CannotChangeError: If the script does not call the wrapper by its name.
    """
    assert wrapping.made is not None
    block, place = script.statements(script.now(wrapping.made.line))[-1]
    names = {wrapping.kind, *_aliases(script, wrapping.kind)}
    for node in ast.walk(block[place]):
        if isinstance(node, ast.Call) and last_name(node.func) in names:
            return node, block[place]
    raise CannotChangeError(f"the script wraps the model otherwise than by {wrapping.kind}(…)")


def _aliases(script: ScriptText, name: str) -> Iterator[str]:
    """Yields the script's own names for an imported name, such as "DDP"."""
    for node in ast.walk(script.tree):
        if isinstance(node, ast.ImportFrom):
            yield from (each.asname for each in node.names if each.name == name and each.asname)
