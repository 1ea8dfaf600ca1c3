"""The process in which a script runs on simulated GPUs; the command starts it.

`python -m plimsoll.prediction.child.program FILE`: the number of an open file that holds a
`Request`. The script's own output is untouched, and so is its exit status. The process is started
with interrupts blocked: one that comes while modules are imported waits, and then ends it without a
word.
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
    """Run the script of the request."""
    with os.fdopen(int(sys.argv[1])) as handed:
        request = Request.from_json(handed.read())
    if request.parent is not None:
        die_with(request.parent, signal.SIGTERM)
    if request.setup.is_eager:
        os.environ["TORCHDYNAMO_DISABLE"] = "1"  # as torch._dynamo.config has it
    try:
        mode = mode_of(request)(request)
        if request.scratch is not None:
            enter_scratch(request.scratch)
            for path, text in request.files.items():
                if not is_held_back(Path(path)):
                    raise InputError(f"{path} would be written in earnest: no trial changes it")
                Path(path).write_text(text)
        mode.begin()
        enter_script(request)
    except InputError as error:
        _refuse(request, str(error))
    ended_by = with_output(mode.execute())
    mode.finish(ended_by)
    end(request, ended_by)


def _refuse(request: Request, why: str) -> NoReturn:
    """End before the script begins, and say why: to who asked, or where nobody did, on stderr."""
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
