"""How a script ended (regularly, out of memory or by another error), and the line at fault."""

from __future__ import annotations

import errno
import socket
import sys
import traceback
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from plimsoll import _core
from plimsoll.prediction.child.error_chain import errors_behind
from plimsoll.prediction.child.missing_repository import missing_repository
from plimsoll.recordings.analysis.lines import NO_LINE, source_line

if TYPE_CHECKING:
    from plimsoll.prediction.hub_repository import HubRepository
    from plimsoll.torch.simulated.simulation import Simulation


_NO_SIZE = "Tried to allocate more than 1EB memory"
"""PyTorch's text for an invalid size, which no card could serve."""
_NO_ROOM_FOR_CONTEXT = "CUDA out of memory: the card has no room for the process's context"


@dataclass(frozen=True)
class ScriptEnding:
    """The ending of a script.

    Attributes:
        has_ended: Whether the script ended by itself with exit status 0, and no kernel failed a
            check.
        has_failed: Whether `has_ended` is False and plimsoll did not stop the script.
        device_failure: Why a kernel failed a check; None if no kernel failed one. A GPU would
            report a device-side assert.
        out_of_memory: PyTorch's message if the script ran out of memory, or the message of a
            serving engine that refuses to start; None otherwise.
        missed_network: Whether the script failed because it was offline.
        missing: The repository of Hugging Face's hub whose absence made the script fail; None if
            the script did not fail for this reason.
    """

    has_ended: bool
    has_failed: bool
    device_failure: str | None
    out_of_memory: str | None
    missed_network: bool
    missing: HubRepository | None

    @staticmethod
    def of(
        simulation: Simulation, error: BaseException | None, *, is_stopped: bool
    ) -> ScriptEnding:
        """Returns the ending of a script; `error` is what it raised, None for a regular end."""
        device_failure = _device_failure(simulation)
        has_ended = error is None or (isinstance(error, SystemExit) and not error.code)
        has_ended = has_ended and device_failure is None
        has_failed = not has_ended and not is_stopped
        return ScriptEnding(
            has_ended,
            has_failed,
            device_failure,
            (_refusal(simulation) or _out_of_memory(error) or _refused(simulation, error))
            if has_failed
            else None,
            has_failed and _missed_network(error),
            missing_repository(error) if has_failed else None,
        )

    @property
    def kind(self) -> str | None:
        """The kind of failure: None, "out_of_memory" or "other"."""
        if self.out_of_memory:
            return "out_of_memory"
        return "other" if self.has_failed else None


def _device_failure(simulation: Simulation) -> str | None:
    """Returns why a kernel's check failed, with the program's line; None if all checks held."""
    found = simulation.library.failure()
    if found is None:
        return None
    why, stack = found
    line = line_of_stack(stack) if stack else NO_LINE
    return why if line == NO_LINE else f"{line}: {why}"


def reason_of(error: BaseException | None) -> str | None:
    """Returns an error's name and first line, with the program's innermost line that raised it."""
    if isinstance(error, SystemExit) and _is_of_import(error):
        # This happens if a script has the name of a standard module and is imported in its place.
        return f"a module that it imports ends the process ({line_of(error)})"
    if error is None or isinstance(error, SystemExit):
        return None
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    name = type(error).__name__
    line = line_of(error)
    # The traceback of a script's SyntaxError contains no line of the script. But the error's text,
    # and so `first`, gives the line.
    where = "" if line == NO_LINE else f" ({line})"
    own = f"{name}{': ' if first else ''}{first}{where}"
    return own if error.__cause__ is None else f"{own}, caused by {reason_of(error.__cause__)}"


def _is_of_import(error: BaseException) -> bool:
    """Returns whether the error comes from the top-level code of an imported module."""
    # The frames of the import and of the module are neighbours: Python removes importlib's frames.
    frames = traceback.extract_tb(error.__traceback__)[-2:]
    return len(frames) == 2 and frames[1].name == "<module>" and "import" in (frames[0].line or "")


def line_of(error: BaseException) -> str:
    """Returns the program's innermost line in the error's traceback."""
    return source_line(
        [
            (frame.filename, frame.lineno or 0, frame.name)
            for frame in reversed(traceback.extract_tb(error.__traceback__))
        ]
    )


@cache
def line_of_stack(stack: int) -> str:
    """Returns the program's innermost line in the call stack with this number."""
    return source_line(_core.stack_frames(stack))


def _out_of_memory(error: BaseException | None) -> str | None:
    """Returns PyTorch's text if `error`, or an error that caused it, is an out-of-memory error."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    failures = (each for each in errors_behind(error) if isinstance(each, torch.OutOfMemoryError))
    texts = (str(each) for each in failures)
    return next((text or _NO_ROOM_FOR_CONTEXT for text in texts if _NO_SIZE not in text), None)


def _refused(simulation: Simulation, error: BaseException | None) -> str | None:
    """Returns the text of the error if CUDA's driver refused memory; None if it did not."""
    refused = simulation.driver_memory.refused
    return next((str(each) for each in errors_behind(error) if refused(each)), None)


def _refusal(simulation: Simulation) -> str | None:
    """Returns a serving engine's message on why it refused to start; None if none refused."""
    return None if simulation.serving is None else simulation.serving.refusal


def _missed_network(error: BaseException | None) -> bool:
    """Returns whether the error, or one that caused it, says that the script is offline.

    If the process has only the loopback network, a failure to resolve or reach an address also
    means that the script is offline.
    """
    errors = errors_behind(error)
    if any("offline" in f"{type(each).__name__} {each.args}".lower() for each in errors):
        return True
    has_network = any(name != "lo" for _, name in socket.if_nameindex())
    return not has_network and any(map(_is_unreachable, errors))


def _is_unreachable(error: BaseException) -> bool:
    return isinstance(error, socket.gaierror) or (
        isinstance(error, OSError) and error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH)
    )
