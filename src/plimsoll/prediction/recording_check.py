"""Compares a prediction with a recording of the same program, and explains the differences."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plimsoll.base.errors import InputError
from plimsoll.base.units import format_count, format_size
from plimsoll.engine.gpus.recorded_card import recorded_card
from plimsoll.engine.replays.replay import replay
from plimsoll.prediction.check_parts import CheckParts, Held
from plimsoll.prediction.check_text import check_text
from plimsoll.prediction.options import Options
from plimsoll.prediction.parts import INTERRUPTED
from plimsoll.prediction.predict import predict_request
from plimsoll.recordings.analysis.block_history import find_lifetimes
from plimsoll.recordings.analysis.lines import NO_LINE, last_part, source_lines
from plimsoll.recordings.reading import read_recording
from plimsoll.recordings.recording import Recording

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    from plimsoll.engine.replays.parts import ReplayResult
    from plimsoll.prediction.request import Request
    from plimsoll.prediction.results import Prediction
    from plimsoll.recordings.recording import DeviceTrace

TOLERANCE = 0.02
_MOST_ASSUMPTIONS = 8
_MOST_SIZES = 3


@dataclass(frozen=True)
class Check(CheckParts):
    """The result of `check`. It prints like `plimsoll predict --check`. See `CheckParts`."""

    def __str__(self) -> str:
        return check_text(self)


def check(
    script: str | PathLike[str],
    recording: str | PathLike[str],
    arguments: Sequence[str] = (),
    *,
    module: bool = False,
    **options: Any,
) -> Check:
    """Predicts a script and compares the prediction with a recording of the script.

    It compares the fullest GPU of the prediction with the fullest GPU of the recording.

    >>> from plimsoll.prediction.recording_check import check
    >>> print(check("train.py", "run.plim", gpu="H100"))  # doctest: +SKIP

    Args:
        script: As for `plimsoll.predict`.
        recording: A file in any readable format: a snapshot, .plim or .parquet.
        arguments: The script's arguments.
        module: As for `plimsoll.predict`.
        options: The options of `plimsoll.predict`. The default for `gpu` is the recorded card.

    Raises:
        InputError: As for `plimsoll.predict`; or if the recording cannot be read or replayed, or
            the script starts processes that use GPUs.
        ScriptError: If the script failed for another reason than memory.
    """
    recorded = read_recording(recording)
    gpu = {"gpu": name} if (name := recorded_gpu(recorded)) is not None else {}
    request = Options(**(gpu | options)).request(script, arguments, is_module=module)
    return check_request(request, recorded)


def recorded_gpu(recorded: Recording) -> str | None:
    """Returns the name of a recording's card; None if unknown."""
    for trace in recorded.devices:
        card = recorded_card(recorded.settings, trace.device)
        if card is not None and card.profile is not None:
            return card.profile.name
    return None


def check_request(request: Request, recorded: Recording) -> Check:
    """Predicts the script of a request, and compares the prediction with a loaded recording."""
    truth = _fullest(recorded)
    # PyTorch's own recorder slows the host, and the host's pace decides when blocks can be reused.
    # So if PyTorch made the recording, its recorder also runs during the prediction.
    by_pytorch = "allocator" not in recorded.settings
    request = replace(request, setup=replace(request.setup, is_recorded=by_pytorch))
    with tempfile.TemporaryDirectory(prefix="plimsoll-") as folder:
        path = Path(folder) / "predicted.plim"
        found = predict_request(replace(request, record=str(path)), measure_need=False)
        if found.stopped is not None and found.stopped.why == INTERRUPTED:
            raise KeyboardInterrupt  # half a run cannot be compared with a whole one
        if found.processes:
            raise InputError(
                f"{request.script} starts processes that use GPUs; only a program of one process "
                "can be held against a recording"
            )
        if not found.uses_cuda:
            raise InputError(f"{request.script} never touches CUDA: there is nothing to check")
        predicted = read_recording(path)
        mine = _trace(predicted, _fullest(predicted).device)
        theirs = _trace(recorded, truth.device)
        sizes = _request_sizes(mine), _request_sizes(theirs)
        held_by, held = _differences(mine, theirs)
    peaks = [
        (found.peak_reserved_bytes, truth.peak_reserved_bytes),
        (found.peak_allocated_bytes, truth.peak_allocated_bytes),
    ]
    return Check(
        script=found.script,
        recording=recorded.name,
        gpu=found.gpu,
        matches=all(abs(one - other) <= TOLERANCE * other for one, other in peaks),
        tolerance=TOLERANCE,
        predicted_reserved_bytes=found.peak_reserved_bytes,
        recorded_reserved_bytes=truth.peak_reserved_bytes,
        predicted_allocated_bytes=found.peak_allocated_bytes,
        recorded_allocated_bytes=truth.peak_allocated_bytes,
        predicted_requests=sizes[0].total(),
        recorded_requests=sizes[1].total(),
        held_by=held_by,
        held=held,
        reasons=[
            *_settings(found, recorded, truth.device),
            *recorded.problems,
            *_only_in_one(*sizes),
            *_assumptions(found),
        ],
    )


def _fullest(recording: Recording) -> ReplayResult:
    """Replays the recording under its own settings. Returns the device that reserved the most."""
    allocator: Any = recording.allocator
    results = replay(recording, allocator=allocator)
    if not len(results):
        raise InputError(f"{recording.name}: holds no events")
    return max(results, key=lambda result: result.peak_reserved_bytes)


def _trace(recording: Recording, device: int) -> DeviceTrace:
    return next(trace for trace in recording.devices if trace.device == device)


def _request_sizes(trace: DeviceTrace) -> Counter[int]:
    """Returns how many allocations of each size the program requests."""
    sizes: Counter[int] = Counter()
    for batch in trace.batches():
        unique, counts = np.unique(batch.size[batch.action == 0], return_counts=True)
        sizes.update(dict(zip(unique.tolist(), counts.tolist(), strict=True)))
    return sizes


def _differences(mine: DeviceTrace, theirs: DeviceTrace) -> tuple[str, list[Held]]:
    """Compares the blocks that are live at the peaks of both traces.

    Returns "line", and a `Held` for each source line whose bytes differ. If the recording has no
    source lines, returns "size", and a `Held` for each block size whose bytes differ.
    """
    predicted, recorded = _at_peak(mine), _at_peak(theirs)
    held_by = "size" if set(recorded.by_line) <= {NO_LINE} else "line"
    if held_by == "line":
        pairs = _same_lines(predicted.by_line, recorded.by_line)
    else:
        pairs = {
            format_size(size): (predicted.by_size[size], recorded.by_size[size])
            for size in predicted.by_size.keys() | recorded.by_size.keys()
        }
    rows = [Held(what, *both) for what, both in pairs.items() if both[0] != both[1]]
    return held_by, sorted(rows, key=lambda row: (-abs(row.difference_bytes), row.what))


@dataclass(frozen=True)
class _Peak:
    """The requested bytes that are live at a peak, by source line and by size."""

    by_line: Counter[str]
    by_size: Counter[int]


def _at_peak(trace: DeviceTrace) -> _Peak:
    blocks = find_lifetimes(trace)
    level = blocks.level()
    live = blocks.live_at(int(level.argmax()) if len(level) else -1)
    place, lines = source_lines(blocks.stack[live], trace.frames)
    by_line: Counter[str] = Counter()
    by_size: Counter[int] = Counter()
    for line, size in zip(place.tolist(), blocks.size[live].tolist(), strict=True):
        by_line[lines[line]] += size
        by_size[size] += size
    return _Peak(by_line, by_size)


def _same_lines(predicted: Counter[str], recorded: Counter[str]) -> dict[str, tuple[int, int]]:
    """Returns the predicted and the recorded bytes of each line.

    Folders differ if the recording was made on another machine. So if the prediction
    lacks a recorded line, the line is matched with a predicted line that differs only in folders.
    """
    names = {line: line for line in predicted}
    for line in predicted:
        names.setdefault(last_part(line), line)
    pairs = {line: (size, 0) for line, size in predicted.items()}
    for line, size in recorded.items():
        name = names.get(line) or names.get(last_part(line)) or line
        mine, theirs = pairs.get(name, (0, 0))
        pairs[name] = (mine, theirs + size)
    return pairs


def _settings(found: Prediction, recorded: Recording, device: int) -> list[str]:
    settings = recorded.settings
    card = recorded_card(settings, device)
    pairs = [
        ("the card", found.gpu, None if card is None else card.name),
        ("PyTorch", found.torch, recorded.version if "torch_version" in settings else None),
        ("the allocator", found.allocator, recorded.allocator),
        ("PYTORCH_CUDA_ALLOC_CONF", found.conf or "empty", recorded.conf or "empty"),
    ]
    return [
        f"{what} differs: predicted with {mine}, recorded with {theirs}"
        for what, mine, theirs in pairs
        if theirs is not None and mine != theirs
    ]


def _only_in_one(predicted: Counter[int], recorded: Counter[int]) -> list[str]:
    """Returns sentences on allocations that only the prediction or only the recording contains.

    Both arguments map a size to the number of allocations that request it.
    """
    found = []
    for which, other, mine in (
        ("prediction", "recording", predicted - recorded),
        ("recording", "prediction", recorded - predicted),
    ):
        if not mine:
            continue
        top = sorted(mine, key=lambda size: -size * mine[size])[:_MOST_SIZES]
        shown = ", ".join(f"{mine[size]} of {format_size(size)}" for size in top)
        more = ", …" if len(mine) > len(top) else ""
        count = format_count(mine.total(), "request")
        found.append(f"{count} of the {which} not in the {other}: {shown}{more}")
    return found


def _assumptions(found: Prediction) -> list[str]:
    lines = []
    for assumed in found.assumptions[:_MOST_ASSUMPTIONS]:
        where = f" ({assumed.line})" if assumed.line else ""
        lines.append(f"assumed of {assumed.operation}{where}: {assumed.what}")
    if len(found.assumptions) > _MOST_ASSUMPTIONS:
        lines.append(f"and {len(found.assumptions) - _MOST_ASSUMPTIONS} more assumptions")
    return lines
