"""Chooses which device of a recording is explained, and makes each device's row of figures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError
from plimsoll.engine.gpus.recorded_card import recorded_card
from plimsoll.engine.replays.replay import replay
from plimsoll.explanation.recorded_state import RecordedPast
from plimsoll.explanation.search import recorded_setting
from plimsoll.explanation.source import has_history
from plimsoll.explanation.state import ReplayedPast
from plimsoll.prediction.parts import GpuUse
from plimsoll.recordings.analysis.block_history import find_lifetimes
from plimsoll.recordings.analysis.rounding import rounded_sizes

if TYPE_CHECKING:
    from plimsoll.engine.gpus.recorded_card import RecordedCard
    from plimsoll.engine.replays.parts import ReplayResult
    from plimsoll.explanation.state import Past
    from plimsoll.recordings.analysis.lifetimes import Lifetimes
    from plimsoll.recordings.recording import DeviceTrace, Recording


@dataclass(frozen=True)
class Device:
    """The history of one device, as recorded or as it would have been under a given limit.

    Attributes:
        recording: The recording of this device only.
        card: The card, if it is known.
        lifetimes: The blocks.
        past: The allocator's state after any event.
        base: The replay that computed these states; None if they come from recorded events.
        notes: Reasons why the states may differ from the real ones.
        is_known: Whether the recording has a history; otherwise it has only the final state.
        peak_allocated_bytes: The most bytes in live blocks at once, rounding included.
        fits: Whether all requests are served, under the limit if one was given.
    """

    recording: Recording
    card: RecordedCard | None
    lifetimes: Lifetimes
    past: Past
    base: ReplayResult | None
    notes: list[str]
    is_known: bool
    peak_allocated_bytes: int
    fits: bool

    def use(self, limit: int | None) -> GpuUse:
        """Returns the row of figures for this device.

        Args:
            limit: The most that the program may reserve, in bytes. If a request fails under it, the
                memory that the program would need is unknown.
        """
        (trace,) = self.recording.devices
        if self.past.is_what_if and not self.fits:
            return GpuUse(trace.device, self.peak_allocated_bytes, None, None, None)
        dedicated, used, room = self.past.peak_dedicated_bytes, None, []
        if limit is not None:
            room.append(limit - dedicated)
        if self.card is not None and self.card.profile is not None:
            used = self.card.profile.context_bytes + dedicated
            room.append(self.card.total_bytes - used)
        reserved, left = self.past.peak.reserved_bytes, min(room, default=None)
        return GpuUse(trace.device, self.peak_allocated_bytes, reserved, used, left)


def find_devices(
    recording: Recording,
    device: int | None,
    card: RecordedCard | None,
    limit: int | None,
    version: str | None,
) -> tuple[Device, list[GpuUse], list[str]]:
    """Examines each device, and chooses the one to explain.

    Args:
        recording: The recording, with all its devices.
        device: The device to explain. None chooses the device with the most memory in use, but a
            device with a failed request comes before all others.
        card: The card of all devices; None for the cards that the recording names.
        limit: The most that each device may reserve, in bytes; None for the recorded limit.
        version: The version of PyTorch; None for the recorded one.

    Returns:
        The chosen device, the figures of each device, and notes on the other devices.

    Raises:
        InputError: If the recording has no such device, or the chosen one cannot be replayed.
    """
    numbers = [trace.device for trace in recording.devices]
    if device is not None and device not in numbers:
        known = ", ".join(map(str, numbers))
        raise InputError(f"{recording.name}: nothing of device {device}; there is {known}")
    chosen: Device | None = None
    most = (False, -1)
    uses, notes, failing = [], [], []
    for trace in recording.devices:
        try:
            found = _look(recording, trace, card, limit, version)
        except InputError as error:
            if len(numbers) == 1 or device == trace.device:
                raise
            uses.append(GpuUse(trace.device, None, None, None, None))
            notes.append(f"what GPU {trace.device} took is not known: {error}")
            continue
        uses.append(found.use(limit))
        if not found.fits:
            failing.append(trace.device)
        rank = (not found.fits, found.peak_allocated_bytes)
        if trace.device == device or (device is None and rank > most):
            chosen, most = found, rank
    if chosen is None:
        raise InputError(f"{recording.name}: no device can be explained; {notes[0]}")
    how = "ran out of memory" if limit is None else "does not fit under the given limit"
    (explained,) = chosen.recording.devices
    notes += [
        f"GPU {number} {how}; --device {number} says why"
        for number in failing
        if number != explained.device
    ]
    return chosen, uses, notes


def _look(
    recording: Recording,
    trace: DeviceTrace,
    card: RecordedCard | None,
    limit: int | None,
    version: str | None,
) -> Device:
    alone = replace(recording, devices=[trace])
    lifetimes, is_known = find_lifetimes(trace), has_history(alone)
    past, base, notes = _past(alone, lifetimes, limit=limit, version=version, is_known=is_known)
    past.limits = recording.limits_of(trace.device)
    level = lifetimes.level(rounded_sizes(lifetimes.size, past.round_request))
    fits = not past.failures()
    if limit is not None and not isinstance(past, ReplayedPast):
        fits = fits and past.peak_dedicated_bytes <= limit
    return Device(
        recording=alone,
        card=card or recorded_card(recording.settings, trace.device),
        lifetimes=lifetimes,
        past=past,
        base=base,
        notes=notes,
        is_known=is_known,
        peak_allocated_bytes=max(
            int(level.max(initial=0)), _peak_allocated_bytes(past, alone, version)
        ),
        fits=fits,
    )


def _past(
    recording: Recording,
    lifetimes: Lifetimes,
    *,
    limit: int | None,
    version: str | None,
    is_known: bool,
) -> tuple[Past, ReplayResult | None, list[str]]:
    """Returns the allocator's states, the replay of the recording if there is one, and notes."""
    (trace,) = recording.devices
    if recording.allocator != "native":
        said = None if has_history(recording) else recording.fragments_bytes(trace.device)
        recorded = RecordedPast(
            trace, lifetimes, recording.allocator, "", version or recording.version, said
        )
        notes = list(recorded.notes)
        is_less = limit is not None and limit < recorded.peak_dedicated_bytes
        if limit is not None and is_known and (is_less or recorded.failures()):
            try:
                under = _under(recording, limit, version)
            except InputError as error:
                notes.append(f"the effect of the given limit is not known: {error}")
            else:
                if is_less or under[1].avoided_ooms:
                    return under
        if not recorded.is_exact:
            notes.append(
                "memory that was reserved before the first event is in pieces of unknown size; the "
                "figures for cached and fragments assume pieces of 2 MiB"
            )
        return recorded, None, notes
    (base,) = replay(recording, limit=limit, version=version)
    notes = _notes(base, is_limited=limit is not None)
    if base.matches_recording is False and "allocator" not in recording.settings:
        notes.append(
            "the recording does not name its allocator, so plimsoll assumes PyTorch's own; "
            "recordings of plimsoll and plimsoll.memory_snapshot() name it"
        )
    if base.matches_recording is False:
        past = RecordedPast(trace, lifetimes, "native", base.conf, base.version)
        return past, base, [*notes, *past.notes]
    start = trace.start(recording.conf, base.version)
    return ReplayedPast(trace, start, base, recording.allocator), base, notes


def _under(
    recording: Recording, limit: int, version: str | None
) -> tuple[Past, ReplayResult, list[str]]:
    """Replays a recording under a limit, with the recorded allocator, which is not PyTorch's.

    Returns the allocator's states during the replay, the replay, and notes.

    Raises:
        InputError: If the recording cannot be replayed.
    """
    (trace,) = recording.devices
    own = recorded_setting(recording)
    if own is None:
        raise InputError(f"there is no replay of the allocator {recording.allocator}")
    (base,) = replay(recording, allocator=own.allocator, limit=limit, version=version)
    start = trace.start(recording.conf, base.version)
    return (
        ReplayedPast(trace, start, base, recording.allocator),
        base,
        _notes(base, is_limited=True),
    )


def _peak_allocated_bytes(past: Past, recording: Recording, version: str | None) -> int:
    """Returns the most bytes in live blocks in the recorded run, rounding included; 0 if unknown.

    A replay under a given limit does not show this number: it may end early, or serve requests that
    failed in the recorded run.
    """
    if not past.is_what_if:
        return past.peak_allocated_bytes
    if recording.allocator != "native":
        return 0
    (own,) = replay(recording, version=version)
    return 0 if own.matches_recording is False else own.peak_allocated_bytes


def _notes(base: ReplayResult, *, is_limited: bool) -> list[str]:
    notes = []
    if base.matches_recording is False:
        notes.append(
            "the replay differs from the recording. Reserved memory and its parts are as recorded "
            "(ends of blocks that are too small to split off count as fragments); advice follows "
            "PyTorch's rules, not the recording"
        )
    if base.matches_recording is None and is_limited:
        whose = "PyTorch's rules" if base.allocator == "native" else "the allocator's rules"
        notes.append(
            f"under the given limit reserved memory follows {whose}; live memory is as recorded"
        )
    elif base.matches_recording is None:
        notes.append(
            "the recording has no segments to compare with: reserved memory follows PyTorch's rules"
        )
    if base.reconstructed_start:
        notes.append(
            "the recording starts late; plimsoll takes what was live before from its final segments"
        )
    return notes
