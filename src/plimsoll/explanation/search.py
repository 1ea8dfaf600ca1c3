"""Searches for advice: replays a recording under other settings, limits and allocators.

The search ends after a fixed number of replayed events, so its result is the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from plimsoll.base.errors import InputError
from plimsoll.base.units import MiB
from plimsoll.engine.replays.replay import AMPLE_MEMORY, replay
from plimsoll.recordings.events import Action

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.engine.protocol import AllocatorName
    from plimsoll.engine.replays.parts import ReplayResult
    from plimsoll.recordings.recording import DeviceTrace, Recording

SETTINGS = (
    "expandable_segments:True",
    *(f"max_split_size_mb:{size}" for size in (32, 64, 128, 256, 512)),
    *(f"roundup_power2_divisions:{divisions}" for divisions in (2, 4, 8, 16)),
)
"""The settings that are tried alone first. Those that help are then tried in combination."""

COLLECTING = ("garbage_collection_threshold:0.6", "garbage_collection_threshold:0.8")
"""The settings that act only under a limit. So plimsoll tries them under a limit."""

_ENOUGH_SHARED = 1 << 40
_NO_LIMIT: dict[str, Any] = {"gpu_memory": AMPLE_MEMORY}

SEARCH_EVENTS = 400_000_000
"""The most events that a search replays.

This allows forty replays of ten million events, which take a minute or two. If frees wait for other
streams, each replay counts three times, so only thirteen such replays are possible.
"""

_LIMIT_STEP = 2 * MiB
# If frees wait for other streams, a trial consists of this many replays, which complete these frees
# at different times.
_TIMINGS = 3


@dataclass(frozen=True)
class Setting:
    """The allocator, the settings and the limit of a replay.

    Attributes:
        conf: PyTorch's settings, in the syntax of PYTORCH_CUDA_ALLOC_CONF.
        limit: The most that may be reserved; None for the recorded limit.
        allocator: "native" (PyTorch's), "elastic" or "uncached".
        dedicated: The most memory on the card, beyond which requests spill into shared memory;
            None without spilling.
    """

    conf: str
    limit: int | None = None
    allocator: AllocatorName = "native"
    dedicated: int | None = None


@dataclass(frozen=True)
class Trial:
    """A setting, and the result of its replay."""

    setting: Setting
    result: ReplayResult

    @property
    def works(self) -> bool:
        """Whether every request was served."""
        return self.result.fits and self.result.num_ooms == 0


class Search:
    """Replays a recording under many settings, up to a total number of events.

    Attributes:
        recording: The recording.
        limit: The most that may be reserved in a trial whose setting has no limit; None for the
            recording's own limit.
        trials: The trials, in order.
        ended_early: Whether trials were left out because they had too many events.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        version: str | None,
        limit: int | None,
        events: int | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        """Makes a search.

        Args:
            recording: The recording.
            version: The version of PyTorch.
            limit: The most that may be reserved in a trial whose setting has no limit; None for the
                recording's own limit.
            events: The number of events that may be replayed; by default `SEARCH_EVENTS`. A trial
                uses up as many events as it replays. If frees wait for other streams, it uses up
                three times as many, because plimsoll then replays three timings.
            progress: A function that is called before each trial with its description.
        """
        self._tell = progress or (lambda _: None)
        self.limit = limit
        self.recording = recording
        self._version = version
        self._events_left = SEARCH_EVENTS if events is None else events
        self._timings = _TIMINGS if any(map(_frees_wait, recording.devices)) else 1
        self.trials: list[Trial] = []
        self.ended_early = False

    def trial(self, setting: Setting, recording: Recording | None = None) -> Trial | None:
        """Replays a recording, by default this search's own, under a setting.

        Returns None if the search has too few events left, or the setting cannot be replayed.
        """
        tried = recording or self.recording
        if self._timings * sum(trace.event_count for trace in tried.devices) > self._events_left:
            self.ended_early = True
            return None
        name = setting.conf or setting.allocator
        self._tell(f"searching for advice: replay {len(self.trials) + 1}, {name}")
        tiers: dict[str, Any] = {}
        if setting.dedicated is not None:
            tiers = {"dedicated": setting.dedicated, "shared": _ENOUGH_SHARED}
        elif limit := setting.limit or self.limit:
            tiers = {"limit": limit}
        elif self.recording.allocator != "native":
            # `replay` would infer a limit from the events, but only the events of PyTorch's own
            # allocator show a real limit.
            tiers = _NO_LIMIT
        try:
            (result,) = replay(
                tried,
                allocator=setting.allocator,
                conf=setting.conf if setting.allocator == "native" else None,
                version=self._version,
                **tiers,
            )
        except InputError:  # the limit is below the live bytes before the first event
            return None
        self._events_left -= self._timings * result.events
        found = Trial(setting, result)
        self.trials.append(found)
        return found

    def least_limit(self, setting: Setting, least: int, most: int) -> Trial | None:
        """Finds the lowest limit that serves all requests, exact to 2 MiB, and returns its trial.

        Returns None if no limit between `least` and `most` serves all requests.
        """
        best: Trial | None = None
        while most - least > _LIMIT_STEP:
            middle = (least + most) // 2
            tried = self.trial(replace(setting, limit=middle))
            if tried is None:
                if self.ended_early:
                    break
                least = middle
            elif tried.works:
                best, most = tried, min(middle, tried.result.peak_reserved_bytes)
            else:
                least = middle
        if best is not None and most != best.setting.limit:  # `best` reserved less than its limit
            return self.trial(replace(setting, limit=most)) or best
        return best


def _frees_wait(trace: DeviceTrace) -> bool:
    """Returns whether a freed block waits for another stream.

    The block's FREE_COMPLETED event then does not directly follow its FREE_REQUESTED event.
    """
    waiting: int | None = None
    for batch in trace.batches():
        if not len(batch):
            continue
        action, address = batch.action, batch.address
        is_completed = action == Action.FREE_COMPLETED
        if waiting is not None and not (is_completed[0] and address[0] == waiting):
            return True
        follows = is_completed[1:] & (address[1:] == address[:-1])
        if ((action[:-1] == Action.FREE_REQUESTED) & ~follows).any():
            return True
        waiting = int(address[-1]) if action[-1] == Action.FREE_REQUESTED else None
    return waiting is not None


def search_settings(search: Search, base: ReplayResult) -> list[Trial]:
    """Tries PyTorch's settings, alone and combined. Returns the trials that work.

    The trial that reserves the least memory comes first.

    Args:
        search: Runs the trials and keeps count of the events that they may still replay.
        base: The replay under the recorded settings. A combined trial keeps the recorded settings
            that it does not replace.
    """
    own = conf_keys(base.conf)

    def confs(extra: str) -> str:
        return conf_text(own | conf_keys(extra))

    # Try each setting together with the recorded settings, and also alone.
    alone = dict.fromkeys(
        [*(confs(one) for one in SETTINGS), *(["", *SETTINGS] if own else [])], None
    )
    single = [search.trial(Setting(conf)) for conf in alone]
    tried = [trial for trial in single if trial is not None]
    failed = base.num_ooms > 0
    helpful = [
        trial
        for trial in tried
        if trial.works and (failed or reserved_bytes(trial) < base.peak_reserved_bytes)
    ]
    helpful.sort(key=reserved_bytes)
    for first in helpful[:2]:
        for second in helpful:
            merged = conf_keys(first.setting.conf) | conf_keys(second.setting.conf)
            if len(merged) > max(len(conf_keys(one.setting.conf)) for one in (first, second)):
                together = search.trial(Setting(conf_text(merged)))
                tried += [together] if together else []
    known = (base.peak_reserved_bytes, base.limit_bytes, search.limit)
    most = min(size for size in known if size is not None)
    for share in (1.05, 1.2):
        limit = int(base.peak_allocated_bytes * share)
        if limit >= most:
            continue
        for collecting in COLLECTING:
            for other in ["", *(trial.setting.conf for trial in helpful[:1])]:
                merged = own | conf_keys(other) | conf_keys(collecting)
                trial = search.trial(Setting(conf_text(merged), limit))
                tried += [trial] if trial else []
    return sorted((trial for trial in tried if trial.works), key=reserved_bytes)


def recorded_setting(recording: Recording) -> Setting | None:
    """Returns the setting of the recorded run; None if that run cannot be replayed."""
    match recording.allocator:
        case "native":
            return Setting(recording.conf)
        case "elastic" | "uncached" as allocator:
            return Setting("", allocator=allocator)
    return None


def reserved_bytes(trial: Trial) -> int:
    """Returns the peak of reserved memory of a trial."""
    return trial.result.peak_reserved_bytes


def conf_keys(conf: str) -> dict[str, str]:
    """Splits a configuration into its parts "key:value", and returns them by key."""
    parts: dict[str, str] = {}
    depth = 0
    part = ""
    for letter in f"{conf},":
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            if part.strip():
                parts[part.partition(":")[0].strip()] = part.strip()
            part = ""
        else:
            part += letter
    return parts


def conf_text(parts: dict[str, str]) -> str:
    """Joins the parts of a configuration into one string."""
    return ",".join(parts.values())
