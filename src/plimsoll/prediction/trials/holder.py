"""The holder of a trial: the process that starts a program and protects real files from its writes.

    python -m plimsoll.prediction.trials.holder SETTINGS COMMAND...

The holder isolates the program by the strongest means that the machine offers (`means`), waits for
it, ends all processes that the program started, and writes the outcome to the trial's folder. If
plimsoll itself has ended by then, the holder removes the folder.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError
from plimsoll.prediction.trials import kernel
from plimsoll.prediction.trials.kept_apart import KeptApart
from plimsoll.prediction.trials.kinds import Kind
from plimsoll.prediction.trials.means import STRONGEST_FIRST
from plimsoll.prediction.trials.outcome import Outcome, Settings
from plimsoll.prediction.trials.program_processes import descendants, end_descendants
from plimsoll.prediction.trials.shared_memory import remove_shared_memory
from plimsoll.prediction.trials.temporary_folder import own

if TYPE_CHECKING:
    from plimsoll.prediction.trials.means import Means

ENDED = signal.SIGUSR2
"""The signal by which plimsoll ends a trial while plimsoll itself goes on."""
_ENDING = (ENDED, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals at which the holder ends the trial. All but the first may have ended plimsoll too."""
INTERRUPTED = signal.SIGUSR1
"""The signal that plimsoll sends after Ctrl-C, in case the program did not receive the Ctrl-C."""
_SECONDS_BETWEEN_LOOKS = 0.5
"""The time between two checks that plimsoll still runs."""
_SECONDS_BETWEEN = 0.01
_SECONDS_FOR_PARENT = 2.0
"""How long the holder waits for plimsoll to end, after a signal made the holder end the trial.

Perhaps plimsoll received the same signal and is about to end.
"""


def main() -> None:
    """Runs the trial that the command line describes, and ends this process."""
    settings = Settings.from_json(sys.argv[1])
    holder = _Holder(settings, sys.argv[2:])
    outcome = holder.hold()
    end_descendants()
    remove_shared_memory(Path(settings.folder))
    if holder.is_alone():
        shutil.rmtree(settings.folder, ignore_errors=True)
    else:
        with suppress(InputError):  # if the disk is full, plimsoll reports the missing outcome
            outcome.keep(Path(settings.folder))
    os._exit(0)


class _Holder:
    def __init__(self, settings: Settings, command: list[str]) -> None:
        self._settings = settings
        self._command = command
        self._why_not: dict[str, str] = {}
        self._wake, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        self._is_ended = False
        self._may_be_left = False

    def hold(self) -> Outcome:
        """Runs the program until it ends or the trial must end. Returns the outcome."""
        kernel.adopt_orphans()
        self._hear_signals()
        own(Path(self._settings.folder))
        for kind in STRONGEST_FIRST if self._settings.kind is None else [self._settings.kind]:
            try:
                means = STRONGEST_FIRST[kind](self._settings)
                process = self._start(means)
            except (OSError, InputError) as error:
                self._why_not[kind] = str(error)
                continue
            return self._held(kind, means, process)
        reasons = "; ".join(f"{kind}: {why}" for kind, why in self._why_not.items())
        return Outcome(None, failure=reasons)

    def is_alone(self) -> bool:
        """Returns whether plimsoll has ended.

        If a signal ended the trial, plimsoll may have got the same signal. The holder then waits up
        to `_SECONDS_FOR_PARENT` for plimsoll to end.
        """
        end = time.monotonic() + (_SECONDS_FOR_PARENT if self._may_be_left else 0)
        while not self._is_left() and time.monotonic() < end:
            time.sleep(_SECONDS_BETWEEN)
        return self._is_left()

    def _is_left(self) -> bool:
        return os.getppid() != self._settings.parent

    def _hear_signals(self) -> None:
        """Sets the signal handlers.

        SIGINT gets none and stays blocked in the holder, because Ctrl-C is meant for the program.
        """
        signal.set_wakeup_fd(self._wakes)
        for number in _ENDING:
            signal.signal(number, self._end)
        signal.signal(INTERRUPTED, self._interrupt)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only a signal with a handler wakes poll

    def _end(self, number: int, _frame: object) -> None:
        self._is_ended = True
        self._may_be_left = number != ENDED

    def _interrupt(self, *_: object) -> None:
        """Interrupts the program, unless the terminal has sent it the Ctrl-C already."""
        if signal.SIGINT in signal.sigpending():
            return
        group = os.getpgrp()
        for each in descendants(os.getpid()):
            with suppress(ProcessLookupError):
                if os.getpgid(each) == group:
                    os.kill(each, signal.SIGINT)

    def _start(self, means: Means) -> int:
        """Starts the program, isolated by `means`, and returns its process id.

        Raises:
            OSError: If the machine does not offer these means.
        """
        means.prepare()
        ours, theirs = socket.socketpair()
        process = os.fork()
        if process == 0:
            self._become_program(means, theirs)
        theirs.close()
        with ours:
            means.begun(ours)
            problem = b"".join(iter(lambda: ours.recv(4096), b""))
        if problem:
            os.waitpid(process, 0)
            means.release()
            raise OSError(os.fsdecode(problem))
        return process

    def _become_program(self, means: Means, to_holder: socket.socket) -> None:
        """Replaces this process by the program. If that fails, sends the error to the holder."""
        try:
            kernel.die_with_parent(signal.SIGKILL)
            signal.set_wakeup_fd(-1)
            for number in (*_ENDING, INTERRUPTED):
                signal.signal(number, signal.SIG_DFL)
            means.enter(to_holder)
            environment = {**os.environ, **means.environment}
            os.execve(self._command[0], self._command, environment)  # noqa: S606
        except BaseException as error:
            to_holder.send(str(error).encode() or b"it failed")
        finally:
            os._exit(1)

    def _held(self, kind: Kind, means: Means, process: int) -> Outcome:
        status = self._wait(means, process)
        end_descendants()
        kept_apart = KeptApart(kind, means.refused(), self._why_not)
        outcome = Outcome(kept_apart, status, means.written())
        means.release()
        return outcome

    def _wait(self, means: Means, process: int) -> int:
        """Waits for the program. Returns its exit status, or -SIGKILL if the trial must end."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if means.listener is not None:
            poll.register(means.listener, select.POLLIN)
        while not self._is_ended and not self._is_left():
            ready = {file for file, _ in poll.poll(1000 * _SECONDS_BETWEEN_LOOKS)}
            if means.listener in ready:
                means.listen()
            if self._wake in ready:
                os.read(self._wake, 64)
            if (status := _bury(process)) is not None:
                return status
        return -signal.SIGKILL


def _bury(program: int) -> int | None:
    """Reaps ended processes, orphans included. Returns the program's exit status if it has ended.

    An ended process keeps its process id until it is reaped. Another process of the trial may be
    waiting for that id to disappear.
    """
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0] != 0:
            if ended[0] == program:
                return os.waitstatus_to_exitcode(ended[1])
    return None


if __name__ == "__main__":
    main()
