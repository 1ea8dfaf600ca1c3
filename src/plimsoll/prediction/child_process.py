"""Runs the simulation of a script in a child process, or in place of this process."""

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

from plimsoll.base.errors import InputError, ScriptError
from plimsoll.base.printable import printable
from plimsoll.base.standard_error import stderr_bytes, stderr_file
from plimsoll.base.systems import require_linux
from plimsoll.base.telemetry.metrics import METRICS
from plimsoll.base.units import format_size
from plimsoll.prediction.assumed import FETCHED, Assumed
from plimsoll.prediction.hub_repository import HubRepository, fetch
from plimsoll.prediction.offline import offline
from plimsoll.prediction.recipes.served import engine_of_script
from plimsoll.prediction.request import BAD_INPUT, Request
from plimsoll.prediction.results import Prediction
from plimsoll.prediction.scratch import free_folders
from plimsoll.prediction.trials.temporary_folder import interrupts_held, temporary_folder
from plimsoll.torch.building.compiler import build
from plimsoll.torch.building.versions import tell_if_unknown
from plimsoll.torch.simulated.library import SIMULATED_GPU
from plimsoll.torch.wheel.own_allocator import build_ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, BinaryIO

    from plimsoll.prediction.trials.outcome import Outcome
    from plimsoll.prediction.trials.written import Written
    from plimsoll.torch.simulated.setup import Setup


MOST_AT_A_TIME = 4
"""The largest number of parallel runs. Each run holds PyTorch and the script's data in memory."""
_SECONDS_TO_ANSWER = 60
_MOST_FETCHED = 8
"""How many repositories of the Hugging Face hub plimsoll fetches at most for one script.

After each fetch the script runs again.
"""
_REPORT, _RECORDED = "report.json", "recorded.plim"
_GROUPS, _SURVEY = "groups.json", "survey.json"


def become(request: Request) -> NoReturn:
    """Replaces this process by the script's process, which keeps stdin and gets the signals.

    Raises:
        InputError: If there is no library of simulated GPUs, and none can be built.
    """
    _prepare(request.setup)
    file = _file_of(request)
    if sys.stdout is not None:  # None if the caller closed stdout
        sys.stdout.flush()
    sys.stderr.flush()
    command = _command(file)
    _hold_interrupts()
    os.execv(command[0], command)  # noqa: S606


def run(request: Request, *, shows_output: bool = True, is_aside: bool = False) -> Prediction:
    """Simulates a request's script in a child process, which ends when this process does.

    Args:
        request: The request.
        shows_output: Whether the script's output goes to stderr as it comes. If not, plimsoll shows
            only the output of a script that fails, once it has failed.
        is_aside: Whether the process runs in the background, as in `started`. If so, Ctrl-C raises
            KeyboardInterrupt in plimsoll, which then ends the process.

    Raises:
        InputError: If the script cannot be simulated.
        ScriptError: If the script failed for another reason than memory.
    """
    with started(request, shows_output=shows_output, is_aside=is_aside) as answer:
        return answer()


@contextmanager
def started(
    request: Request,
    *,
    shows_output: bool = True,
    is_aside: bool = False,
    failed_output: BinaryIO | None = None,
    fetched: frozenset[str] = frozenset(),
) -> Iterator[Callable[[], Prediction]]:
    """Starts a request's process, and yields the function that waits for its answer.

    When the caller leaves the `with` block, plimsoll ends the process if it still runs. The yielded
    function raises the errors of `run`. If a script fails because a model's configuration is
    missing, the yielded function fetches the configuration and starts the request again.

    Args:
        request: The request.
        shows_output: As for `run`.
        is_aside: Whether the process runs in the background. If so, it reads no input, gets no
            Ctrl-C, and prints nothing about a failure.
        failed_output: The file for the output of a script that fails, if the output is not shown.
            Without a file, the output goes to stderr, or is dropped if `is_aside` is set.
        fetched: The names of the hub's repositories that were fetched for this request so far.

    Raises:
        InputError: If there is no library of simulated GPUs, and none can be built.
    """
    _prepare(request.setup)
    shown_failed = stderr_bytes() if failed_output is None and not is_aside else failed_output
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        file = _file_of(_redirected(request, folder))
        command = _command(file)
        if not request.keep_writes:
            from plimsoll.prediction.trials.trial import held  # Linux only

            command = held(command, folder, free_folders(), with_network=request.network)
        stack.callback(os.close, file)
        output = None if shows_output else stack.enter_context((folder / "output").open("w+b"))
        sys.stderr.flush()
        with interrupts_held():  # holds Ctrl-C back until `stack` has the callback `_end`
            process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL if is_aside else None,
                stdout=stderr_file() if output is None else output,
                stderr=output,
                pass_fds=[file],
                env=_environment(request, is_aside=is_aside),
                preexec_fn=_hold_interrupts,
                start_new_session=is_aside,
            )
            stack.callback(_end, process, is_held=not request.keep_writes)
        run = _Run(request, folder, process, is_aside=is_aside)

        def answer() -> Prediction:
            try:
                return run.answer(output, shown_failed)
            except MissingRepositoryError as missing:
                name = missing.repository.name
                is_known = name in fetched or len(fetched) >= _MOST_FETCHED
                if is_known or not missing.repository.needs_description:
                    raise
                fetch(missing.repository, request.title)
                news = f"plimsoll: fetched what describes {name} from the hub, no weights"
                print(printable(f"{news}; {request.title} runs again"), file=sys.stderr, flush=True)
                again = started(
                    request, shows_output=shows_output, is_aside=is_aside,
                    failed_output=failed_output, fetched=fetched | {name},
                )  # fmt: skip
                found = stack.enter_context(again)()
                told = Assumed(FETCHED, name, None, 1)
                return replace(found, assumptions=[*found.assumptions, told])

        yield answer


class MissingRepositoryError(InputError):
    """A script that ran without a network failed to get a model or a data set of the hub."""

    def __init__(self, repository: HubRepository, script: str) -> None:
        super().__init__(repository.missing_text(script))
        self.repository = repository


def _redirected(request: Request, folder: Path) -> Request:
    """Returns the request with its output files redirected into a temporary folder.

    The files that the script writes also stay in this folder until the process ends. The parent
    reads all files of the folder after that.
    """

    def inner(wanted: str | None, name: str) -> str | None:
        return None if wanted is None else str(folder / name)

    return replace(
        request,
        report=str(folder / _REPORT),
        record=inner(request.record, _RECORDED),
        groups=inner(request.groups, _GROUPS),
        survey=inner(request.survey, _SURVEY),
        parent=os.getpid() if request.keep_writes else None,
        scratch=request.scratch if request.keep_writes else str(folder),
    )


def _environment(request: Request, *, is_aside: bool) -> dict[str, str]:
    environment = {**os.environ, **request.environment}
    environment.pop(METRICS, None)  # the port belongs to the real job
    if is_aside:
        environment.setdefault("OMP_NUM_THREADS", str(_threads_aside()))
    if not request.keep_writes:
        environment |= offline(os.environ, with_hubs=request.network)
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    return environment


class _Run:
    """A process that runs a request, and the folder of its files."""

    def __init__(
        self, request: Request, folder: Path, process: subprocess.Popen[bytes], *, is_aside: bool
    ) -> None:
        self._request, self._folder, self._process = request, folder, process
        self._is_aside = is_aside

    def answer(self, output: BinaryIO | None, shown_failed: BinaryIO | None) -> Prediction:
        """Waits for the process and returns its answer.

        Args:
            output: The file with the script's output; None if the output was shown.
            shown_failed: The file to which a failed script's output is copied; None to drop it.
        """
        request, report = self._request, self._folder / _REPORT
        is_held = not request.keep_writes
        seconds = 0 if self._is_aside else _SECONDS_TO_ANSWER
        status, is_interrupted = _wait(self._process, seconds, is_held=is_held)
        outcome = self._outcome() if is_held else None
        self._move(_GROUPS, request.groups)
        # With `is_aside` the process has its own session, so Ctrl-C interrupts only plimsoll. The
        # caller wants no answer then, even if the process wrote its report.
        if is_interrupted and (self._is_aside or not report.exists()):
            raise KeyboardInterrupt
        try:
            found = _result(request, status, report, outcome)
            self._move_recordings(request.record)
            self._move(_SURVEY, request.survey)
            return self._with_writes(found, outcome) if is_held else found
        except (InputError, ScriptError) as error:
            _check_room(self._folder, error)
            if output is not None and shown_failed is not None:
                output.seek(0)
                shutil.copyfileobj(output, shown_failed)
                shown_failed.flush()
            raise

    def _outcome(self) -> Outcome | None:
        from plimsoll.prediction.trials.trial import outcome_of  # Linux only

        return outcome_of(self._folder)

    def _move(self, name: str, wanted: str | None) -> None:
        """Moves a file from the folder to the caller's path, if the process wrote it."""
        if wanted is not None and (self._folder / name).exists():
            shutil.move(self._folder / name, wanted)

    def _move_recordings(self, wanted: str | None) -> None:
        """Moves the recordings of the script and of each rank from the folder to `wanted`."""
        if wanted is None:
            return
        self._move(_RECORDED, wanted)
        own, to = Path(_RECORDED), Path(wanted)
        for file in self._folder.glob(f"{own.stem}.rank*{own.suffix}"):
            rank = file.name.removeprefix(own.stem).removesuffix(own.suffix)
            self._move(file.name, str(to.with_name(f"{to.stem}{rank}{to.suffix}")))

    def _with_writes(self, found: Prediction, outcome: Outcome | None) -> Prediction:
        if outcome is None:
            raise InputError(
                f"{self._request.script}: its trial was killed before it could report a result"
            )
        own = _by_itself(self._request, outcome.written)
        return replace(found, written=own, kept_apart=outcome.kept_apart)


def _check_room(folder: Path, error: Exception) -> None:
    """Raises an `InputError` if the process failed because the file system is full."""
    if os.strerror(errno.ENOSPC) in str(error) or not os.statvfs(folder).f_bavail:
        raise InputError(
            f"{folder.parent}: the file system is full. plimsoll keeps the script's writes there: "
            "make room, or set TMPDIR to a folder on another file system"
        ) from error


def _threads_aside() -> int:
    """Returns the number of threads for one run, so that parallel runs share the CPU's cores."""
    return max(1, (os.cpu_count() or 1) // MOST_AT_A_TIME)


def _by_itself(request: Request, written: list[Written]) -> list[Written]:
    """Returns the files that the script wrote, except files whose text the request replaced."""
    given = set(request.files)
    return [one for one in written if str(Path(one.path).absolute()) not in given]


def _end(process: subprocess.Popen[bytes], *, is_held: bool) -> None:
    """Ends a process if it still runs."""
    if process.poll() is not None:
        return
    if is_held:
        from plimsoll.prediction.trials.trial import end

        end(process)
    else:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], seconds: float, *, is_held: bool) -> tuple[int, bool]:
    """Waits for the process. Returns its exit status, and whether Ctrl-C interrupted the wait.

    After an interrupt the process has `seconds` to write its report.
    """
    try:
        return process.wait(), False
    except KeyboardInterrupt:
        try:
            if is_held and seconds:
                from plimsoll.prediction.trials.trial import interrupt

                interrupt(process)
            return process.wait(seconds), True
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            raise KeyboardInterrupt from None  # the caller ends the process and its children


def _prepare(setup: Setup) -> None:
    """Builds the libraries that the script's process needs; warns of an unknown PyTorch version."""
    require_linux("a prediction")
    tell_if_unknown()
    build(SIMULATED_GPU)
    build_ahead(is_asked_for=setup.wheel)


def _file_of(request: Request) -> int:
    """Writes a request to a nameless file in memory, which the script's process inherits."""
    file = os.memfd_create("plimsoll-request", 0)
    with os.fdopen(file, "w", closefd=False) as writer:
        writer.write(request.to_json())
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _hold_interrupts() -> None:
    """Blocks Ctrl-C. The child unblocks it after its imports."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])


def _command(request: int) -> list[str]:
    # -P: a file in the current folder must not be imported in place of one of Python's modules.
    return [sys.executable, "-P", "-m", "plimsoll.prediction.child.program", str(request)]


def _result(request: Request, status: int, path: Path, outcome: Outcome | None) -> Prediction:
    if outcome is not None:
        status = outcome.status
        if outcome.kept_apart is None:
            raise InputError(
                f"plimsoll cannot discard what {request.script} writes on this machine "
                f"({outcome.failure}); --keep-writes runs the script and keeps its writes"
            )
    if not path.exists():
        if status == BAD_INPUT:
            raise InputError(f"{request.script} could not be simulated")
        if status == 0:
            raise InputError(f"{request.script} ended its process without a report (os._exit?)")
        raise ScriptError(_name(request), status, refused=_refused(outcome))
    report: dict[str, Any] = json.loads(path.read_text())
    if report["error"] == "refused":
        raise InputError(report["reason"])
    if report["error"] == "other":
        if report["missing"] is not None:
            missing = HubRepository(**report["missing"])
            if request.keep_writes or request.network:
                # The script had network access, so the hub itself gave this answer.
                raise InputError(missing.missing_text(request.title))
            missing = replace(missing, reason="plimsoll runs scripts offline, unless --network")
            raise MissingRepositoryError(missing, request.title)
        raise ScriptError(
            _name(request),
            status,
            report["unknown_read"],
            missed_network=report["missed_network"]
            and not (request.keep_writes or request.network),
            refused=_refused(outcome),
            reason=report["reason"] or _why_bad_usage(request, status),
            device_failure=report["device_failure"],
            until_then=_taken(report["prediction"]),
        )
    if report["error"] == "killed":
        raise InputError(
            f"{request.script} started a process that used a simulated GPU, and that was killed "
            "before it reported how much memory it took"
        )
    return Prediction.from_dict(report["prediction"])


def _why_bad_usage(request: Request, status: int) -> str | None:
    """Returns a hint on arguments if a script without arguments exits with a usage error."""
    if status == BAD_INPUT and not request.arguments:
        return "its own arguments go after `--`"
    return None


def _taken(prediction: dict[str, Any]) -> str | None:
    """Returns the peaks of memory in words; None if the script reserved nothing."""
    allocated, reserved = prediction["peak_allocated_bytes"], prediction["peak_reserved_bytes"]
    if not reserved:
        return None
    return f"its peak was {format_size(allocated)} allocated, {format_size(reserved)} reserved"


def _refused(outcome: Outcome | None) -> str | None:
    """Returns, in words, the first write to a real file that the kernel refused, or None."""
    if outcome is None or outcome.kept_apart is None or not outcome.kept_apart.refused:
        return None
    first = outcome.kept_apart.refused[0]
    return f"{first.program} change {first.path}"


def _name(request: Request) -> str:
    """Returns the program's name for errors: the script, or the command of a serving engine."""
    return request.script if engine_of_script(request.script) is None else request.title
