"""Running a request: in a process of its own, or as this very process."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from plimsoll.errors import InputError, ScriptError
from plimsoll.prediction.offline import offline
from plimsoll.prediction.request import BAD_INPUT, Request
from plimsoll.prediction.results import Prediction
from plimsoll.prediction.scratch import free_folders
from plimsoll.standard_error import stderr_bytes, stderr_file
from plimsoll.systems import require_linux
from plimsoll.torch.building.compiler import build
from plimsoll.torch.building.versions import tell_if_unknown
from plimsoll.torch.simulated.library import SIMULATED_GPU
from plimsoll.trials.temporary_folder import interrupts_held, temporary_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, BinaryIO

    from plimsoll.trials.outcome import Outcome
    from plimsoll.trials.written import Written


MOST_AT_A_TIME = 4
"""So many runs beside each other: each holds PyTorch, and what the script keeps in memory."""
_SECONDS_TO_ANSWER = 60


def become(request: Request) -> NoReturn:
    """Go on as the script's process: exit status, signals and stdin are its own.

    Raises:
        InputError: If there is no library of simulated GPUs, and none can be built.
    """
    _prepare()
    file = _file_of(request)
    sys.stdout.flush()
    sys.stderr.flush()
    command = _command(file)
    _hold_interrupts()
    os.execv(command[0], command)  # noqa: S606


def run(request: Request, *, shows_output: bool = True) -> Prediction:
    """Run a request in a process of its own, which ends when this one does.

    Args:
        request: What to run.
        shows_output: The script's output goes to stderr as it comes; if not, only the output of a
            script that fails, once it has.

    Raises:
        InputError: If it cannot be simulated.
        ScriptError: If the script failed for another reason than memory.
    """
    with started(request, shows_output=shows_output) as answer:
        return answer()


@contextmanager
def started(
    request: Request,
    *,
    shows_output: bool = True,
    is_aside: bool = False,
    failed_output: BinaryIO | None = None,
) -> Iterator[Callable[[], Prediction]]:
    """A request's process, for as long as the context lasts, and what waits for its answer.

    Args:
        request: As for `run`, whose errors the answer raises.
        shows_output: Likewise.
        is_aside: It runs beside another: it reads no input, no interrupt reaches it, and a failure
            shows nothing.
        failed_output: Where the output of a script that fails goes, if it is not shown; stderr by
            default, and nowhere for one beside another.

    Raises:
        InputError: If there is no library of simulated GPUs, and none can be built.
    """
    from plimsoll.trials.trial import held, outcome_of  # which needs Linux

    _prepare()
    shown_failed = stderr_bytes() if failed_output is None and not is_aside else failed_output
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        report = folder / "report.json"
        environment = dict(os.environ)
        if is_aside:
            environment.setdefault("OMP_NUM_THREADS", str(_threads_aside()))
        asked = replace(request, report=str(report), parent=os.getpid())
        recorded = folder / "recorded.plim"
        if request.record is not None:
            asked = replace(asked, record=str(recorded))
        groups = folder / "groups.json"
        if request.groups is not None:
            asked = replace(asked, groups=str(groups))
        survey = folder / "survey.json"
        if request.survey is not None:
            asked = replace(asked, survey=str(survey))
        if not request.keep_writes:  # all of them lie beside the layer, so that they can be read
            environment |= offline(os.environ, with_hubs=request.network)
            environment["PYTHONDONTWRITEBYTECODE"] = "1"
            asked = replace(asked, scratch=str(folder), parent=None)
        file = _file_of(asked)
        command = _command(file)
        if not request.keep_writes:
            command = held(command, folder, free_folders(), with_network=request.network)
        stack.callback(os.close, file)
        output = None if shows_output else stack.enter_context((folder / "output").open("w+b"))
        sys.stderr.flush()
        with interrupts_held():  # until what ends it is known
            process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL if is_aside else None,
                stdout=stderr_file() if output is None else output,
                stderr=output,
                pass_fds=[file],
                env=environment,
                preexec_fn=_hold_interrupts,
                start_new_session=is_aside,
            )
            stack.callback(_end, process, is_held=not request.keep_writes)

        def answer() -> Prediction:
            seconds = 0 if is_aside else _SECONDS_TO_ANSWER
            status, is_interrupted = _wait(process, seconds, is_held=not request.keep_writes)
            outcome = None if request.keep_writes else outcome_of(folder)
            if request.groups is not None and groups.exists():
                shutil.move(groups, request.groups)
            # What ran beside others heard no interrupt, so what it says, if it ended, is no answer.
            if is_interrupted and (is_aside or not report.exists()):
                raise KeyboardInterrupt
            try:
                found = _result(request, status, report, outcome)
                if request.record is not None and recorded.exists():
                    shutil.move(recorded, request.record)
                if request.survey is not None and survey.exists():
                    shutil.move(survey, request.survey)
                if request.keep_writes:
                    return found
                if outcome is None:
                    raise InputError(f"{request.script}: its trial ended before it could be told")
                own = _by_itself(request, outcome.written)
                return replace(found, written=own, kept_apart=outcome.kept_apart)
            except (InputError, ScriptError) as error:
                _check_room(folder, error)
                if output is not None and shown_failed is not None:
                    output.seek(0)
                    shutil.copyfileobj(output, shown_failed)
                    shown_failed.flush()
                raise

        yield answer


def _check_room(folder: Path, error: Exception) -> None:
    """Say that there was no room for a trial's files, if that is why it failed."""
    if os.strerror(errno.ENOSPC) in str(error) or not os.statvfs(folder).f_bavail:
        raise InputError(
            f"{folder.parent}: the file system is full, and what the script writes is kept there; "
            "make room, or set TMPDIR to a folder of another"
        ) from error


def _threads_aside() -> int:
    """For what a script computes on the CPU, so that runs beside each other share the cores."""
    return max(1, (os.cpu_count() or 1) // MOST_AT_A_TIME)


def _by_itself(request: Request, written: list[Written]) -> list[Written]:
    """What the script wrote, without the files that were given other texts for it."""
    given = set(request.files)
    return [one for one in written if str(Path(one.path).absolute()) not in given]


def _end(process: subprocess.Popen[bytes], *, is_held: bool) -> None:
    """End it, unless it has ended."""
    if process.poll() is not None:
        return
    if is_held:
        from plimsoll.trials.trial import end

        end(process)
    else:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], seconds: float, *, is_held: bool) -> tuple[int, bool]:
    """The exit status, and whether it was interrupted: it then has so long for its answer."""
    try:
        return process.wait(), False
    except KeyboardInterrupt:
        try:
            if is_held and seconds:
                from plimsoll.trials.trial import interrupt

                interrupt(process)
            return process.wait(seconds), True
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            raise KeyboardInterrupt from None  # which ends it, and what it started


def _prepare() -> None:
    """Have the library ready, and say what is to be said, before the script's process starts."""
    require_linux("a prediction")
    tell_if_unknown()
    build(SIMULATED_GPU)


def _file_of(request: Request) -> int:
    """A file in memory, without a name, that the script's process inherits: it is left nowhere."""
    file = os.memfd_create("plimsoll-request", 0)
    with os.fdopen(file, "w", closefd=False) as writer:
        writer.write(request.to_json())
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _hold_interrupts() -> None:
    """Until the script's process has imported what it needs, see `child`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])


def _command(request: int) -> list[str]:
    # -P: not the current folder, where anybody may have put a module of any name.
    return [sys.executable, "-P", "-m", "plimsoll.prediction.child.program", str(request)]


def _result(request: Request, status: int, path: Path, outcome: Outcome | None) -> Prediction:
    if outcome is not None:
        status = outcome.status
        if outcome.kept_apart is None:
            raise InputError(
                f"{request.script} cannot be kept from real files here ({outcome.failure}); "
                "--keep-writes runs it so that its writes stay"
            )
    if not path.exists():
        if status == BAD_INPUT:
            raise InputError(f"{request.script} could not be simulated")
        if status == 0:
            raise InputError(f"{request.script} ended its process without a report (os._exit?)")
        raise ScriptError(request.script, status, refused=_refused(outcome))
    report: dict[str, Any] = json.loads(path.read_text())
    if report["error"] == "refused":
        raise InputError(report["reason"])
    if report["error"] == "other":
        raise ScriptError(
            request.script,
            status,
            report["unknown_read"],
            missed_network=report["missed_network"]
            and not (request.keep_writes or request.network),
            refused=_refused(outcome),
            reason=report["reason"],
            device_failure=report["device_failure"],
        )
    if report["error"] == "killed":
        raise InputError(
            f"{request.script}: a process that it started used a simulated GPU, and was killed "
            "before it told how much memory it took"
        )
    return Prediction.from_dict(report["prediction"])


def _refused(outcome: Outcome | None) -> str | None:
    """The first thing that a script was refused, in words."""
    if outcome is None or outcome.kept_apart is None or not outcome.kept_apart.refused:
        return None
    first = outcome.kept_apart.refused[0]
    return f"{first.program} change {first.path}"
