"""The process in which a script runs on simulated GPUs; the command starts it.

`python -m plimsoll.predict.child REQUEST.json`: see `Request`. The script's own output is
untouched, and so is its exit status.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.errors import InputError
from plimsoll.files import NewFile
from plimsoll.gpus import GpuProfile, gpu_profile
from plimsoll.predict.observer import Observer
from plimsoll.predict.report import make_report
from plimsoll.predict.request import BAD_INPUT, Request
from plimsoll.torch.simulation import Simulation, start

if TYPE_CHECKING:
    from types import ModuleType, TracebackType


def main() -> None:
    """Run the script of the request."""
    path = Path(sys.argv[1])
    request = Request(**json.loads(path.read_text()))
    path.unlink()
    began = time.perf_counter()
    process = os.getpid()
    try:
        simulation = Simulation(
            [_profile(name, request) for name in request.gpus],
            driver=request.driver,  # type: ignore[arg-type]
            conf=request.conf,
            allocator=request.allocator,  # type: ignore[arg-type]
            policy=request.policy,  # type: ignore[arg-type]
            host_memory=request.host_memory_bytes,
            unlimited=request.unlimited,
        )
    except InputError as error:
        print(f"plimsoll: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    observer = Observer(simulation) if request.report is not None else None
    start(simulation, observer.install if observer else _record)
    sys.argv = [request.script, *request.arguments]
    sys.path[0] = str(Path(request.script).resolve().parent)
    _variables, ended_by = _run(request.script)
    sys.stdout.flush()
    is_parent = os.getpid() == process  # a forked child ends here too
    if observer is not None and request.report is not None and is_parent:
        report = make_report(simulation, observer, request, ended_by, time.perf_counter() - began)
        with NewFile(request.report) as file:
            file.write(json.dumps(report).encode())
        if report["error"] == "out_of_memory":
            sys.exit(1)  # the answer, not an error
    _end(ended_by)


def _record(_: ModuleType) -> None:
    if os.environ.get("PLIMSOLL_RECORD"):
        from plimsoll.record.environment import record_from_environment

        record_from_environment()


def _profile(name: str, request: Request) -> GpuProfile:
    profile = gpu_profile(name)
    if request.dedicated_bytes is None:
        return profile
    return replace(profile, total_bytes=request.dedicated_bytes + profile.context_bytes)


def _run(script: str) -> tuple[dict[str, Any], BaseException | None]:
    """Run it; its variables, which live as long as the program does, and how it ended."""
    try:
        return runpy.run_path(script, run_name="__main__"), None
    except BaseException as error:  # also SystemExit and KeyboardInterrupt
        return {}, error


def _end(error: BaseException | None) -> None:
    """End as the script would have."""
    if error is None:
        return
    if isinstance(error, SystemExit):
        raise error
    if isinstance(error, KeyboardInterrupt):
        sys.exit(130)
    _print_traceback(error)
    sys.exit(1)


def _print_traceback(error: BaseException) -> None:
    own = (os.path.dirname(__file__), "<frozen runpy>")  # noqa: PTH120
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(own):
        trace = trace.tb_next
    hook = sys.excepthook  # the script's own, if it set one
    hook(type(error), error.with_traceback(trace), trace)


if __name__ == "__main__":
    main()
