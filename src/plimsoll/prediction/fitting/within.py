"""Finds changes that make a script fit a card."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.base.errors import InputError
from plimsoll.base.files import check_can_be_made
from plimsoll.base.script_file import module_file
from plimsoll.base.units import format_size, parse_memory
from plimsoll.engine.gpus.profiles import gpu_profile
from plimsoll.prediction.caveats import caveats_of_fit
from plimsoll.prediction.distinct import find_roles
from plimsoll.prediction.fitting.applied_script import write_applied
from plimsoll.prediction.fitting.attempts import Attempts
from plimsoll.prediction.fitting.headroom import Headroom
from plimsoll.prediction.fitting.original_lines import original_lines
from plimsoll.prediction.fitting.plan_command import plan_command
from plimsoll.prediction.fitting.plan_page import write_plan_page
from plimsoll.prediction.fitting.plan_parts import OtherAllocator, PlannedChange
from plimsoll.prediction.fitting.plan_search import Search
from plimsoll.prediction.fitting.plans import Plan
from plimsoll.prediction.fitting.script_text import ScriptText
from plimsoll.prediction.fitting.tried_sets import tried_sets
from plimsoll.prediction.not_kept import each_once
from plimsoll.prediction.options import Options
from plimsoll.prediction.predicted_page import check_page
from plimsoll.prediction.trials.kept_apart import most_refused
from plimsoll.prediction.used_memory import used_memory
from plimsoll.recordings.analysis.lines import short_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    from plimsoll.prediction.fitting.attempts import Attempt
    from plimsoll.prediction.fitting.changes.change import Change
    from plimsoll.prediction.fitting.plan_search import Watcher
    from plimsoll.prediction.request import Request
    from plimsoll.prediction.survey import AllocatorUse
    from plimsoll.prediction.trials.kept_apart import KeptApart

_PLACEHOLDER = "CHANGED.py"
"""The name of the changed script in a command, if the changed script is not written to a file."""


class _Nobody:
    """A watcher that ignores the progress of a search."""

    def begins(self, names: Sequence[str]) -> None:
        """Ignores a trial that begins."""

    def ended(self, attempt: Attempt) -> None:
        """Ignores a trial that ended."""


def fit_within(
    script: str | PathLike[str],
    arguments: Sequence[str] = (),
    *,
    module: bool = False,
    within: int | str | None = None,
    gpu: str = "H100",
    apply: str | PathLike[str] | None = None,
    view: str | PathLike[str] | None = None,
    force: bool = False,
    compiles: bool = False,
    headroom: int | str | None = None,
    watcher: Watcher | None = None,
    **options: Any,
) -> Plan:
    """Finds the changes with which a script fits and is fastest, in at most 15 simulations.

    If a size depends on values that are not computed, two more simulations find the range of the
    script's memory.

    The search first tries changes that keep the results:

    - freeing gradients earlier
    - a fused optimizer
    - computing the loss in chunks
    - recomputing modules
    - keeping saved tensors and optimizer state in host memory
    - splitting the batch into parts
    - another allocator

    If none of these fits, the search also tries changes that alter the results: numbers of fewer
    bits, or another optimizer.

    >>> import plimsoll
    >>> plan = plimsoll.fit_within("train.py", within="12GiB")  # doctest: +SKIP
    >>> print(plan.patch)  # doctest: +SKIP

    Args:
        script: A Python file.
        arguments: The script's arguments.
        module: Whether the script is a module's name. The changes are made to the module's file.
        within: The memory of the card for the program, CUDA's context included, as bytes or as
            "24GiB"; None for all of it.
        gpu: The card.
        apply: The file for the changed script; None to write none. Comments at the file's head
            name the changes and the command that runs the file.
        view: The file for the page of `plimsoll.view`, which shows the unchanged script beside the
            plan; None to write none. For the page, plimsoll runs the script again: unchanged,
            and also with the plan if the plan changes anything.
        force: Whether to replace existing files.
        compiles: Whether to try `torch.compile` too, which takes longer.
        headroom: The part of `within` that stays free, such as "2GiB" or "5%" of the card. The
            plan's `within_bytes` is the rest. With None no memory has to stay free. If the fastest
            plan then leaves less than 5 % free, plimsoll looks for a plan that leaves 5 % and only
            sets the script's own options. plimsoll prefers such a plan even if it is slower.
        watcher: Called when each trial begins and ends.
        options: The options of `predict`.

    Raises:
        InputError: If an argument is bad, the script uses no GPU, or a file cannot be written.
        ScriptError: If the unchanged script fails for another reason than memory.
    """
    began = time.perf_counter()
    profile = gpu_profile(gpu)
    whole = profile.total_bytes - used_memory(options.get("used"))
    room = whole if within is None else parse_memory(within)
    if room > whole:
        has = f"{profile.name} has for the program: {format_size(whole)}"
        raise InputError(f"{format_size(room)} is more than {has}")
    room -= Headroom.parse(headroom).of(profile.total_bytes)
    dedicated = room - profile.context_bytes
    if dedicated <= 0:
        context, left = format_size(profile.context_bytes), format_size(max(0, room))
        raise InputError(
            f"CUDA's context takes {context} of {profile.name}, but the program may use only {left}"
        )
    asked = Options(gpu=gpu, **{**options, "dedicated": dedicated})
    request = asked.request(script, arguments, is_module=module)
    if request.runs_distinct:
        request = replace(request, ranks=find_roles(request).ranks, runs_distinct=False)
    if request.keep_writes:
        raise InputError("fit discards what its trials write, so --keep-writes does not go with it")
    if apply is not None:
        check_can_be_made(Path(apply), force=force)
    if view is not None:
        check_page([request], Path(view), force=force)
    path = (module_file(request.script) if module else Path(request.script)).resolve()
    attempts = Attempts(request, path, ScriptText.read(path), dedicated)
    search = Search(attempts, dedicated, watcher or _Nobody(), compiles=compiles)
    interrupted = False
    try:
        search.run(prefers_own=headroom is None)
        search.find_range()
    except KeyboardInterrupt:
        if not search.known:
            raise
        interrupted = True
        search.settle()
    found = _Found(search, attempts, request, path, room, dedicated)
    plan = found.plan(apply)
    if apply is not None and plan.fits:
        write_applied(str(attempts.text(found.chosen.changes)), plan, apply, force=force)
        plan = replace(plan, applied=str(apply))
    page = None
    if view is not None and not interrupted:
        try:
            page = write_plan_page(
                attempts, search.base, found.chosen, found.use, view, fits=plan.fits, force=force
            )
        except KeyboardInterrupt:
            interrupted = True
    return replace(plan, seconds=time.perf_counter() - began, interrupted=interrupted, page=page)


class _Found:
    """The result of a search, from which the plan is made.

    Attributes:
        chosen: The attempt that is the plan, or if none fits, the attempt that needs the least
            memory.
        use: The allocator with which `chosen` fits, or with which it needs the least memory.
    """

    def __init__(
        self,
        search: Search,
        attempts: Attempts,
        request: Request,
        path: Path,
        within: int,
        room: int,
    ) -> None:
        self._search = search
        self._attempts = attempts
        self._request = request
        self._path = path
        self._within = within
        self._room = room
        as_it_is = search.base.prediction
        assert as_it_is is not None
        if not as_it_is.uses_cuda:
            raise InputError(str(as_it_is).splitlines()[0].removesuffix("."))
        done = [attempt for attempt in search.known if attempt.prediction is not None]
        self._least = min(done, key=lambda attempt: attempt.least_bytes())
        best = search.best
        self.chosen = self._least if best is None else best.attempt
        self.use = self._least.least_use() if best is None else best.use

    def plan(self, apply: str | PathLike[str] | None) -> Plan:
        """Returns the finished plan: figures, patch, command.

        Args:
            apply: The file for the changed script; None to write none.
        """
        base, chosen, use, best = self._search.base, self.chosen, self.use, self._search.best
        assert base.prediction is not None
        assert self._least.prediction is not None
        assert chosen.prediction is not None
        script, changed = self._attempts.script, self._attempts.text(chosen.changes)
        patch = script.difference(changed, _name_in_patch(self._request, self._path))
        run = chosen.prediction if best is None else best.verified
        reserved = use.peak_reserved_bytes if best is None else run.peak_reserved_bytes
        outside = chosen.outside_bytes()
        ends = run.peak_reserved_range_bytes
        seconds, before = chosen.step_seconds, base.step_seconds
        tried = list(tried_sets(self._search.known, chosen, self._search.fits))
        front = [each for each in tried if each.is_on_front]
        return Plan(
            script=self._request.title,
            gpu=base.prediction.gpu,
            within_bytes=self._within,
            fits=best is not None,
            plan=[_planned(change, script) for change in chosen.changes],
            allocator=use.allocator,
            conf=use.conf,
            command=self._command(patch, apply, use),
            others=self._others(patch, apply),
            patch=patch,
            peak_allocated_bytes=use.peak_allocated_bytes,
            peak_reserved_bytes=reserved,
            device_used_bytes=outside + reserved if best is None else run.device_used_bytes,
            step_seconds=seconds,
            slowdown=None if seconds is None or not before else seconds / before,
            as_it_is_bytes=base.prediction.device_used_bytes,
            device_used_range_bytes=ends and (outside + ends[0], outside + ends[1]),
            gives_cached_back=best is not None and use.peak_reserved_bytes > self._room,
            host_peak_bytes=run.host_peak_bytes,
            host_peak_range_bytes=run.host_peak_range_bytes,
            front=sorted(front, key=lambda each: each.step_seconds or 0.0),
            tried=tried,
            floor_bytes=self._least.least_bytes(),
            floor_changes=[change.label for change in self._least.changes],
            floor_held=self._least.prediction.by_category,
            floor_lines=original_lines(
                self._least.prediction.top_lines,
                self._path,
                self._attempts.text(self._least.changes),
            ),
            room_bytes=self._room,
            before=base.prediction.timeline,
            after=run.timeline,
            simulations=self._attempts.count,
            seconds=0.0,
            kept_apart=self._kept_apart(),
            not_kept=each_once([run.not_kept, base.prediction.not_kept]),
            caveats=list(caveats_of_fit(run)),
        )

    def _kept_apart(self) -> KeptApart | None:
        predictions = (attempt.prediction for attempt in self._search.known)
        return most_refused(*(each.kept_apart for each in predictions if each is not None))

    def _others(self, patch: str, apply: str | PathLike[str] | None) -> list[OtherAllocator]:
        """Returns the other allocators with which the plan fits, if it needs one at all."""
        best, own = self._search.best, self.chosen.allocators()[:1]
        if best is None or self.use in own:
            return []
        return [
            OtherAllocator(
                each.allocator,
                each.conf,
                self.chosen.outside_bytes() + each.taken_bytes,
                self._command(patch, apply, each),
            )
            for each in self._search.uses(self.chosen)
            if each != self.use
        ]

    def _command(self, patch: str, apply: str | PathLike[str] | None, use: AllocatorUse) -> str:
        arguments = self._attempts.arguments(self.chosen.changes)
        launcher = _launcher(self._request)
        if self._request.is_module:  # the name stays: the patch changes the module's own file
            name, launcher = self._request.script, [*launcher, "-m"]
        elif apply is not None:
            name = str(apply)
        else:
            name = _PLACEHOLDER if patch else self._request.script
        return plan_command(name, arguments, self._request.setup, use, launcher)


def _name_in_patch(request: Request, path: Path) -> str:
    """Returns the script's name in a patch: without a folder if the script is one of plimsoll's."""
    if request.is_module:
        return short_path(str(path))
    is_recipe = request.title != request.script
    return Path(request.script).name if is_recipe else request.script


def _launcher(request: Request) -> list[str]:
    """Returns the arguments for `python`, before the script, that start the ranks of a job."""
    if request.nproc_per_node is None:
        return []
    nodes = ["--nnodes", str(request.nnodes)] if request.nnodes > 1 else []
    ranks = ["--nproc-per-node", str(request.nproc_per_node)]
    return ["-m", "torch.distributed.run", *nodes, *ranks]


def _planned(change: Change, script: ScriptText) -> PlannedChange:
    """Returns a change as data, with the lines that it adds to the script or rewrites."""
    lines = script.added(change.edit(script))
    return PlannedChange(change.name, lines, change.caveat, change.note, change.label)
