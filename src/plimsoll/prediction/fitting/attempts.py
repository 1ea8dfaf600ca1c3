"""Tries changes to a script. Each attempt is a prediction of a changed copy of the script."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError, ScriptError
from plimsoll.base.standard_error import stderr_bytes
from plimsoll.base.units import format_count
from plimsoll.prediction.child_process import started
from plimsoll.prediction.fitting.changes.change import SWITCH
from plimsoll.prediction.fitting.changes.of_causes import own_causes
from plimsoll.prediction.fitting.script_text import CannotChangeError, ScriptText
from plimsoll.prediction.fitting.side_by_side import slots
from plimsoll.prediction.fitting.varied_argument import put_in, take_out
from plimsoll.prediction.parts import INTERRUPTED
from plimsoll.prediction.ranges import with_range
from plimsoll.prediction.reruns import Reruns
from plimsoll.prediction.survey import AllocatorUse, Survey
from plimsoll.prediction.trials.temporary_folder import temporary_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plimsoll.prediction.fitting.changes.change import Change
    from plimsoll.prediction.request import Request
    from plimsoll.prediction.results import Prediction

Changes = tuple["Change", ...]

_STEPS_TO_COMPARE = 2
"""How many optimizer steps a run needs before it is compared with the unchanged script's run.

If the unchanged script makes fewer steps, its number of steps counts instead. The optimizer creates
its state in the first step, so only later steps have the state in memory from their start.
"""


@dataclass(frozen=True)
class Attempt:
    """The result of a script with some changes.

    Attributes:
        changes: The changes.
        prediction: The prediction; None if the script failed.
        survey: The observed parts of the changed script, such as its optimizers; None if the
            script failed.
        failure: Why the script failed, or why a change cannot be made in it; None for a success.
    """

    changes: Changes
    prediction: Prediction | None
    survey: Survey | None
    failure: str | None = None

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of the attempt's changes."""
        return frozenset(change.kind for change in self.changes)

    @property
    def step_seconds(self) -> float | None:
        """The time in which the changed script does the work of one step of the unchanged script.

        None if unknown. A change may split one step into several. The change may also take time
        that the simulation does not count.
        """
        if self.prediction is None or self.prediction.step_seconds is None:
            return None
        steps = prod(each.steps for each in self.changes)
        unseen = sum(each.unseen_seconds for each in self.changes)
        return steps * self.prediction.step_seconds + unseen

    @property
    def nccl_bytes(self) -> int:
        """How much of the card's memory NCCL takes."""
        return 0 if self.prediction is None else self.prediction.nccl_bytes

    def allocated_bytes(self) -> int:
        """Returns the peak of allocated memory on the card. Blocks in host memory do not count."""
        assert self.prediction is not None
        shared = self.prediction.shared
        return self.prediction.peak_allocated_bytes - (shared.peak_allocated_bytes if shared else 0)

    def outside_bytes(self) -> int:
        """Returns the bytes that the CUDA context and NCCL take of the card's memory."""
        assert self.prediction is not None
        return self.prediction.context_bytes + self.nccl_bytes

    def allocators(self) -> list[AllocatorUse]:
        """Returns what the script takes with each allocator. PyTorch's own allocator is first."""
        return [] if self.survey is None else self.survey.allocators

    def fitting(self) -> AllocatorUse | None:
        """Returns the first allocator with which the script fits; None if there is none."""
        return next((use for use in self.allocators() if use.fits), None)

    def least_use(self) -> AllocatorUse:
        """Returns the entry of `allocators()` whose `least_reserved_bytes` is lowest."""
        return min(self.allocators(), key=lambda use: use.least_reserved_bytes)

    def least_bytes(self) -> int:
        """Returns how much of the card's memory suffices with the allocator of `least_use`."""
        return self.outside_bytes() + self.least_use().least_reserved_bytes


def changed(script: ScriptText, changes: Changes) -> ScriptText:
    """Returns the script after these changes.

    Raises:
        CannotChangeError: If a change does not apply to the script.
    """
    for change in sorted(changes, key=lambda each: each.order):
        script = change.edit(script)
    return script


class Attempts:
    """Runs attempts, several in parallel if there are several cores.

    Args:
        request: The request for the unchanged script.
        path: The script's file.
        script: The script's text.
        room: How many bytes of the card's memory PyTorch and NCCL may take together.
    """

    def __init__(self, request: Request, path: Path, script: ScriptText, room: int) -> None:
        self.script = script
        self._request = request
        self._path = path
        self._room = room
        self.count = 0
        self._steps_to_compare = 0

    @property
    def at_a_time(self) -> int:
        """The number of parallel attempts."""
        return slots(self._request)

    def text(self, changes: Changes) -> ScriptText:
        """Returns the script after these changes."""
        return changed(self.script, changes)

    def run(
        self, sets: Sequence[Changes], ended: Callable[[Attempt], None] | None = None
    ) -> list[Attempt]:
        """Simulates the script with each set of changes, on a card with unlimited memory."""
        found = []
        with ExitStack() as stack:
            folder = stack.enter_context(temporary_folder())
            answers = [
                self._start(changes, folder / f"survey-{number}.json", stack)
                for number, changes in enumerate(sets)
            ]
            for answer in answers:
                found.append(answer())
                if ended is not None:
                    ended(found[-1])
        return found

    def with_least_of(self, attempt: Attempt, use: AllocatorUse) -> Attempt:
        """Runs an attempt again under the allocator of `use`. Returns the attempt with new figures.

        The attempt ran under another allocator. For the allocator of `use` it has only a figure
        from a replay of the requests. The replay lacks the waits and moves of memory that this
        allocator causes. If the script fails in the new run, the attempt is returned unchanged.
        """
        with ExitStack() as stack:
            survey = stack.enter_context(temporary_folder()) / "survey.json"
            found = self._start(attempt.changes, survey, stack, use)()
        own = [each for each in found.allocators() if each.allocator == use.allocator]
        if not own or attempt.survey is None:
            return attempt
        others = [own[0] if each == use else each for each in attempt.allocators()]
        return replace(attempt, survey=replace(attempt.survey, allocators=others))

    def verify(self, changes: Changes, use: AllocatorUse) -> Prediction:
        """Predicts the changed script on a card of limited memory, under the allocator of `use`."""
        self.count += 1
        request = self.request(changes, use)
        with started(request, shows_output=False, is_aside=True) as answer:
            return _finished(answer())

    def with_range(self, changes: Changes, use: AllocatorUse, found: Prediction) -> Prediction:
        """Adds the range of the peaks to `found`, a prediction by `verify`, if the peaks may vary.

        They may vary if the script's behaviour depends on data that plimsoll does not know.
        """
        if not found.needs_trials:
            return found
        self.count += 2
        request = self.request(changes, use)
        return with_range(request, found, Reruns.of(request, found, lambda _: None))

    def request(self, changes: Changes, use: AllocatorUse, *, unlimited: bool = False) -> Request:
        """Returns the request for a changed script under an allocator.

        With `unlimited` the card has unlimited memory.
        """
        setup = replace(
            self._request.setup,
            unlimited=unlimited,
            allocator=use.allocator,  # type: ignore[arg-type]
            conf=use.conf if use.allocator == "native" else "",
        )
        return replace(
            self._request,
            arguments=self.arguments(changes),
            setup=setup,
            files=self._files(changes),
        )

    def arguments(self, changes: Changes) -> list[str]:
        """Returns the script's arguments, with the options that the changes set."""
        arguments = list(self._request.arguments)
        for change in changes:
            for name, value in change.arguments:
                if value == SWITCH:
                    arguments.append(name)
                else:
                    arguments = put_in(take_out(arguments, name)[1], name, int(value))
        return arguments

    def _files(self, changes: Changes) -> dict[str, str]:
        if not changes:
            return {}
        others = {path: text for change in changes for path, text in change.files}
        return {str(self._path): str(self.text(changes)), **others}

    def _start(
        self, changes: Changes, survey: Path, stack: ExitStack, use: AllocatorUse | None = None
    ) -> Callable[[], Attempt]:
        setup = replace(self._request.setup, unlimited=True)
        if use is not None:
            setup = replace(setup, allocator=use.allocator, conf=use.conf)  # type: ignore[arg-type]
        for change in changes:
            if change.allocator is not None:
                setup = replace(setup, allocator=change.allocator, conf="")  # type: ignore[arg-type]
        try:
            files = self._files(changes)
        except CannotChangeError as error:
            reason = str(error)
            return lambda: Attempt(changes, None, None, reason)
        self.count += 1
        request = replace(
            self._request,
            arguments=self.arguments(changes),
            setup=setup,
            survey=str(survey),
            room=self._room,
            files=files,
        )
        is_as_it_is = not changes and use is None  # a failure is then the script's own
        shown = stderr_bytes() if is_as_it_is else None
        answer = stack.enter_context(
            started(request, shows_output=False, is_aside=True, failed_output=shown)
        )

        def attempt() -> Attempt:
            try:
                prediction = _finished(answer())
                if not survey.exists():  # all ranks of the job ended before they reported
                    raise InputError(f"{request.script}: no rank told what it used of a GPU")
            except (ScriptError, InputError) as error:
                if is_as_it_is:
                    raise
                return Attempt(changes, None, None, _reason(error))
            if prediction.out_of_memory is not None:
                return Attempt(changes, None, None, "it runs out of shared memory")
            steps = len(prediction.step_peaks_bytes)
            if is_as_it_is:
                self._steps_to_compare = min(steps, _STEPS_TO_COMPARE)
            elif steps < self._steps_to_compare and not prediction.processes:
                few = f"the run ends after {format_count(steps, 'step')} of the optimizer"
                return Attempt(changes, None, None, f"{few}, too few to compare: use a longer run")
            found = Survey.from_dict(json.loads(survey.read_text()))
            found = replace(found, causes=own_causes(self._path, prediction.causes))
            if prediction.shared is not None and prediction.shared.peak_bytes:
                found = replace(found, allocators=[self._with_shared(prediction)])
            if prediction.shared_cards:
                uses = [self._beside_others(use, prediction) for use in found.allocators]
                found = replace(found, allocators=uses)
            if any(change.kind == "offload" for change in changes):
                room = self._room - prediction.nccl_bytes
                found = replace(found, allocators=[_unless_late(u, room) for u in found.allocators])
            return Attempt(changes, prediction, found)

        return attempt

    def _with_shared(self, prediction: Prediction) -> AllocatorUse:
        """Returns the use of a card by a program that also placed blocks in shared host memory.

        The figures are the run's own, because a replay cannot place blocks in shared memory.
        """
        assert prediction.shared is not None
        reserved = prediction.shared.peak_dedicated_bytes
        allocated = prediction.peak_allocated_bytes - prediction.shared.peak_allocated_bytes
        limit = prediction.limit_bytes
        room = self._room - prediction.nccl_bytes
        fits = reserved <= (room if limit is None else min(room, limit))
        return AllocatorUse(prediction.allocator, prediction.conf, allocated, reserved, fits)

    def _beside_others(self, use: AllocatorUse, prediction: Prediction) -> AllocatorUse:
        """Returns `use`, with `fits` False if other processes leave too little memory."""
        outside = prediction.device_used_bytes - prediction.peak_reserved_bytes
        room = self._room + prediction.context_bytes - outside
        return replace(use, fits=use.fits and use.least_reserved_bytes <= room)


def _unless_late(use: AllocatorUse, room: int) -> AllocatorUse:
    """Sets `fits` to False if the script fits only because PyTorch's allocator releases segments.

    In a simulation, a script with offloading fitted only in this way. On an H200 it ran out of
    memory. PyTorch's allocator releases only whole segments. It cannot release a segment while a
    copy to the host still reads a block in it. The elastic allocator waits for the copy and moves
    other blocks.
    """
    if use.allocator == "native" and use.peak_reserved_bytes > room:
        return replace(use, fits=False)
    return use


def _finished(found: Prediction) -> Prediction:
    """Returns the prediction. Raises `KeyboardInterrupt` if the user interrupted the run."""
    if found.stopped is not None and found.stopped.why == INTERRUPTED:
        raise KeyboardInterrupt
    return found


def _reason(error: Exception) -> str:
    reason = str(getattr(error, "reason", None) or error)
    refusal = f"{InputError.__name__}: "
    if reason.startswith(refusal):  # the change calls plimsoll, which refuses the script
        return reason.removeprefix(refusal)
    return f"the script fails: {reason}"
