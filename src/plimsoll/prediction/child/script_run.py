"""Runs the script as Python would, and ends the process as Python would."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.base.errors import InputError
from plimsoll.base.printable import printable
from plimsoll.base.script_file import is_kept
from plimsoll.base.standard_streams import drop_output, has_reader
from plimsoll.prediction.child.missing_repository import missing_repository
from plimsoll.prediction.child.stops import StoppedError
from plimsoll.prediction.request import BAD_INPUT

if TYPE_CHECKING:
    from types import TracebackType

    from plimsoll.prediction.request import Request

_variables: list[dict[str, Any]] = []
"""Keeps the script's global variables alive until its exit handlers have run, as Python does."""


def enter_script(request: Request) -> None:
    """Sets `sys.argv` and `sys.path` as `python SCRIPT` and `python -m` do.

    Call it after all imports by plimsoll: the script's own modules may have the same names as
    modules that plimsoll imports.

    Raises:
        InputError: If the requested module does not exist.
    """
    sys.argv = [request.script, *request.arguments]
    sys.path.insert(0, str(_own_folder(request)))
    if request.is_module and (missing := _missing_module(request.script)) is not None:
        raise InputError(f"there is no module {missing}")


def run_script(request: Request) -> BaseException | None:
    """Runs the script to its end. Returns the error that ended it, or None."""
    try:
        if request.is_module:
            variables = runpy.run_module(request.script, run_name="__main__", alter_sys=True)
        else:
            variables = runpy.run_path(request.script, run_name="__main__")
    except BaseException as error:  # including SystemExit and KeyboardInterrupt
        return error
    _variables.append(variables)
    return None


def with_output(error: BaseException | None) -> BaseException | None:
    """Flushes the script's output. Returns `error`, or the flush's own error if `error` is None."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as failure:
        return error or failure
    return error


def end(request: Request, error: BaseException | None) -> None:
    """Ends the process as Python ends a script that raised `error`.

    If a model or a data set is missing, this prints one line instead of a traceback, because the
    script is not at fault. If the parent process asked for a report, the parent prints that line.
    """
    if error is None:
        return
    if isinstance(error, SystemExit):
        raise error
    if isinstance(error, KeyboardInterrupt):
        sys.exit(130)
    if isinstance(error, StoppedError):
        return
    if isinstance(error, BrokenPipeError) and not has_reader(1):  # for example under | head
        drop_output(1)
        sys.exit(1)
    missing = missing_repository(error)
    if missing is not None:
        if request.report is None:
            line = printable(f"plimsoll: {missing.missing_text(request.title)}")
            print(line, file=sys.stderr, flush=True)
        sys.exit(BAD_INPUT)
    _print_traceback(error)
    sys.exit(1)


def _own_folder(request: Request) -> Path:
    """Returns the folder from which the script imports its own modules."""
    script = Path(request.script)
    return Path.cwd() if request.is_module or is_kept(script) else script.resolve().parent


def _missing_module(name: str) -> str | None:
    """Returns the outermost package or module in `name` that Python cannot find.

    For "a.b.c" the function looks for "a", then "a.b", then "a.b.c". Returns None if Python finds
    them all, or if the import of a package fails.
    """
    for end_of_name in [place for place, sign in enumerate(name) if sign == "."] + [len(name)]:
        try:
            spec = importlib.util.find_spec(name[:end_of_name])
        except Exception:  # the package's own code failed, and will fail again in run_script
            return None
        if spec is None:
            return name[:end_of_name]
    return None


def _print_traceback(error: BaseException) -> None:
    own = (os.path.dirname(__file__), "<frozen runpy>")  # noqa: PTH120
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(own):
        trace = trace.tb_next
    hook = sys.excepthook  # the script's own hook, if it set one
    hook(type(error), error.with_traceback(trace), trace)
