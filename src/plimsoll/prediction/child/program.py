"""The main module of the process in which a script runs on simulated GPUs.

`python -m plimsoll.prediction.child.program FILE`: FILE is the number of an open file descriptor,
from which the process reads a `Request`. The script's output and exit status are unchanged. The
parent starts the process with SIGINT blocked, so that an interrupt takes effect only after the
imports. If the interrupt came during the imports, the process ends silently after them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from plimsoll.base.errors import InputError
from plimsoll.base.files import NewFile
from plimsoll.prediction.child.death_signal import die_with
from plimsoll.prediction.child.modes import mode_of
from plimsoll.prediction.child.script_run import end, enter_script, with_output
from plimsoll.prediction.request import BAD_INPUT, Request
from plimsoll.prediction.scratch import enter_scratch, is_held_back


def main() -> None:
    """Runs the script of the request, and then ends the process in the same way as the script."""
    with os.fdopen(int(sys.argv[1])) as handed:
        request = Request.from_json(handed.read())
    if request.parent is not None:
        die_with(request.parent, signal.SIGTERM)
    if request.setup.is_eager:
        os.environ["TORCHDYNAMO_DISABLE"] = "1"  # torch._dynamo.config accepts only "1"
    try:
        mode = mode_of(request)(request)
        if request.scratch is not None:
            enter_scratch(request.scratch)
            for path, text in request.files.items():
                if not is_held_back(Path(path)):
                    raise InputError(f"{path} was not written: no trial may change it")
                Path(path).write_text(text)
        mode.begin()
        enter_script(request)
    except InputError as error:
        _refuse(request, str(error))
    ended_by = with_output(mode.execute())
    mode.finish(ended_by)
    end(request, ended_by)


def _refuse(request: Request, why: str) -> NoReturn:
    """Ends the process before the script begins, and says why.

    If the parent asked for a report, the reason goes into the report, otherwise to stderr.
    """
    if request.report is None:
        print(f"plimsoll: {why}", file=sys.stderr)
    else:
        with NewFile(request.report) as file:
            file.write(json.dumps({"error": "refused", "reason": why}).encode())
    sys.exit(BAD_INPUT)


if __name__ == "__main__":
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        main()
    except KeyboardInterrupt:
        sys.exit(130)
