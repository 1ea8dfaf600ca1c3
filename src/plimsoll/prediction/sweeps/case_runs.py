"""Prepares a sweep's cases, and runs one in a worker."""

from __future__ import annotations

import hashlib
import io
import json
import os
from contextlib import redirect_stderr
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError, ScriptError
from plimsoll.engine.gpus.profiles import gpu_profile
from plimsoll.engine.replays.replay import replay
from plimsoll.prediction.little_room import doubt
from plimsoll.prediction.options import Options
from plimsoll.prediction.predict import predict_request
from plimsoll.prediction.recipes.served import engine_version
from plimsoll.prediction.sweeps.parts import Row

if TYPE_CHECKING:
    from plimsoll.prediction.request import Request
    from plimsoll.prediction.sweeps.parts import Case
    from plimsoll.prediction.sweeps.program_digest import ProgramDigests

_FORM = 4
"""A number in each row's key. When rows get new contents, increase it to run all cases again."""


@dataclass(frozen=True)
class CaseRun:
    """The input of a worker.

    Attributes:
        case: The case to run.
        key: The key of the case's `Row`.
        folder: The folder to run the case in.
        request: The request of a prediction; None for a replay.
    """

    case: Case
    key: str
    folder: str
    request: Request | None


def prepared(case: Case, digests: ProgramDigests, options: Options | None = None) -> CaseRun:
    """Checks a case and returns the input of the worker that runs it.

    Args:
        case: The case to run.
        digests: The digests of all programs.
        options: The options of a prediction. They must include the case's card, configuration,
            allocator and job. If None, these four come from the case, and all other options have
            their defaults.

    Raises:
        InputError: If the case's program, card or configuration cannot be used.
    """
    request = None
    if case.kind == "prediction":
        own = Options(
            gpu=case.gpu or "", conf=case.conf or "", allocator=case.allocator,
            nproc_per_node=case.nproc_per_node, nnodes=case.nnodes or 1,
        )  # fmt: skip
        request = (options or own).request(case.program, case.arguments)
        torch = metadata.version("torch")
        asked = {**asdict(request), "arguments": case.arguments}
    else:
        torch, asked = "", asdict(case)
    card = None if case.gpu is None else gpu_profile(case.gpu)
    figures = "" if card is None else f"{card!r} {card.convolutions} {card.searches}"
    versions = [_FORM, metadata.version("plimsoll-gpu"), torch, figures]
    if case.engine is not None:
        versions.append(engine_version(case.engine))
    if request is not None:
        digest = digests.of_script(request.script)
    else:
        digest = digests.of_file(case.program)
    text = json.dumps([versions, asdict(case), asked, digest], sort_keys=True)
    key = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
    return CaseRun(case, key, str(Path.cwd()), request)


def run_case(run: CaseRun) -> Row:
    """Runs a case in its folder, without output on stderr, and returns its row."""
    os.chdir(run.folder)
    with redirect_stderr(io.StringIO()):
        return row_of(run)


def row_of(run: CaseRun, *, is_aside: bool = False) -> Row:
    """Runs a case and returns its row. If the case fails, the row has the error.

    Args:
        run: The case.
        is_aside: Whether the prediction is one of several. If so, Ctrl-C ends it without an answer,
            and the output of a failing program is dropped.
    """
    try:
        if run.request is None:
            return _replayed(run)
        return _predicted(run, run.request, is_aside=is_aside)
    except (InputError, ScriptError) as error:
        return Row(run.case, run.key, str(error))


def _predicted(run: CaseRun, request: Request, *, is_aside: bool) -> Row:
    found = predict_request(request, shows_output=False, is_aside=is_aside)
    if not found.uses_cuda:
        return Row(run.case, run.key, f"{found.script} never touches CUDA")
    is_alike = found.serving is None  # an engine's steps cannot be compared between cards
    return Row(
        run.case,
        run.key,
        fits=found.fits,
        peak_allocated_bytes=found.peak_allocated_bytes,
        peak_reserved_bytes=found.peak_reserved_bytes,
        device_used_bytes=found.device_used_bytes,
        total_bytes=found.total_bytes,
        step_seconds=found.step_seconds if is_alike else None,
        samples_per_second=found.samples_per_second if is_alike else None,
        result={**found.to_dict(), "timeline": None},
        may_not_fit=doubt(found) is not None,
    )


def _replayed(run: CaseRun) -> Row:
    case = run.case
    profile = None if case.gpu is None else gpu_profile(case.gpu)
    limit = None if profile is None else profile.total_bytes - profile.context_bytes
    found = replay(case.program, allocator=case.allocator, conf=case.conf, limit=limit)  # type: ignore[arg-type]
    if not found:
        return Row(case, run.key, f"{case.program} has no events")
    fullest = max(found, key=lambda one: (not one.fits, one.peak_reserved_bytes))
    fits = all(one.fits for one in found)
    most = None if profile is None else profile.most_context_bytes(profile.context_bytes)
    left = 0 if profile is None else profile.total_bytes - fullest.peak_reserved_bytes
    return Row(
        case,
        run.key,
        fits=fits,
        peak_allocated_bytes=fullest.peak_allocated_bytes,
        peak_reserved_bytes=fullest.peak_reserved_bytes,
        device_used_bytes=fullest.peak_reserved_bytes,
        total_bytes=fullest.limit_bytes if profile is None else profile.total_bytes,
        result=[one.to_dict() for one in found],
        may_not_fit=fits and most is not None and most > left,
    )
