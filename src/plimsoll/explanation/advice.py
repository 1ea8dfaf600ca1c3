"""Finds advice, and tests each piece of it by a replay.

The search replays the recorded requests without the leaks. It also replays them under other
settings of PyTorch's allocator, alone and combined, and under plimsoll's elastic allocator. Some
replays lower the limit on reserved memory, raise it until a failed request succeeds, or let memory
spill into shared memory. Some replays free gradients earlier, where the program could call
`zero_grad`. The search compares each replay with a replay under the recorded settings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from plimsoll.base.units import MiB, format_size
from plimsoll.engine.replays.replay import AMPLE_MEMORY
from plimsoll.explanation.gradients import with_earlier_zero_grad
from plimsoll.explanation.kept_advice import KeptAdvice
from plimsoll.explanation.leak_advice import add_leaks
from plimsoll.explanation.search import (
    Search,
    Setting,
    Trial,
    conf_keys,
    recorded_setting,
    reserved_bytes,
    search_settings,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.engine.replays.parts import ReplayResult
    from plimsoll.explanation.leak_advice import FoundLeak
    from plimsoll.explanation.parts import Advice, OutOfMemory
    from plimsoll.recordings.analysis.categories import Categories
    from plimsoll.recordings.analysis.lifetimes import Lifetimes
    from plimsoll.recordings.analysis.steps import Steps
    from plimsoll.recordings.recording import Recording

_MOST_SETTINGS = 3
# To try spilling, plimsoll replays with less dedicated memory: this share of the peak of allocated
# bytes. If a request failed and the program's limit is known, plimsoll uses that limit instead.
_SPILL_TO = 0.75


def give_advice(
    search: Search,
    base: ReplayResult | None,
    lifetimes: Lifetimes,
    steps: Steps,
    categories: Categories,
    *,
    leaks: Sequence[FoundLeak],
    failure: OutOfMemory | None,
    total_bytes: int | None,
) -> list[Advice]:
    """Searches for advice, and returns the advice that helps.

    Args:
        search: The replays of one device of the recording.
        base: The device's replay under the recorded settings; None if this function must make it.
        lifetimes: The device's blocks.
        steps: The program's steps.
        categories: The use of each block.
        leaks: The leaks.
        failure: The last request that failed, in the recording or under a given limit.
        total_bytes: The memory of the card, if it is known.
    """
    recording = search.recording
    own = recorded_setting(recording)
    if own is None:
        return []
    if base is None:
        before = search.trial(own)
        if before is None:
            return []
        base = before.result
    has_failed = failure is not None or not base.fits
    found = KeptAdvice(base, failed=has_failed, total_bytes=total_bytes)
    has_stacks = bool(lifetimes.stack.any())
    add_leaks(search, own, leaks, lifetimes, found, has_stacks=has_stacks)
    unlimited = {own: base}
    if own.allocator == "native":
        settings = search_settings(search, base)
        for trial in _different(settings)[:_MOST_SETTINGS]:
            limit = trial.setting.limit
            under = "" if limit is None else f", under a limit of {format_size(limit)}"
            what = f"{_in_words(trial.setting.conf, base.conf)}{under}"
            found.add("setting", what, found.call(trial.setting), trial)
        alone = next((trial for trial in settings if trial.setting.limit is None), None)
        if alone is not None:
            unlimited.setdefault(alone.setting, alone.result)
    elastic: Trial | None = Trial(own, base)
    if own.allocator != "elastic":
        elastic = search.trial(Setting("", allocator="elastic"))
        how = "plimsoll run --allocator elastic"
        found.add("elastic", "use plimsoll's elastic allocator", how, elastic)
    for setting, result in unlimited.items():
        _add_limit(search, setting, result, found)
    found.drop_needless_limits()
    if failure is not None and failure.cause == "limit":
        _add_higher_limit(search, own, failure, found)
    if not (own.allocator == "elastic" and lifetimes.shared.any()):
        _add_spill(search, elastic, found)
    if not found.failed and not base.reconstructed_start:
        edited = with_earlier_zero_grad(recording, lifetimes, steps, categories)
        if edited is not None:
            _add_zero_grad(search, own, edited, found, is_known=has_stacks)
    return found.advice


def _in_words(conf: str, before: str) -> str:
    """Describes in words how a configuration differs from an earlier one."""
    wanted, there = conf_keys(conf), conf_keys(before)
    changes = [
        _change(*text.split(":", 1)) for key, text in wanted.items() if there.get(key) != text
    ]
    dropped = sorted(there.keys() - wanted.keys())
    if dropped:
        changes.append(f"drop {' and '.join(dropped)}")
    return " and ".join(changes) or "keep the settings"


def _change(key: str, value: str) -> str:
    if value in ("True", "False"):
        return f"turn {'on' if value == 'True' else 'off'} {key}"
    return f"set {key} to {value}"


def _add_limit(search: Search, setting: Setting, alone: ReplayResult, found: KeptAdvice) -> None:
    """Adds advice to combine a setting with a limit, if that saves more than the setting alone."""
    if found.failed:
        return
    trial = search.least_limit(setting, alone.peak_allocated_bytes, alone.peak_reserved_bytes)
    if trial is None or trial.setting.limit is None:
        return
    if reserved_bytes(trial) >= alone.peak_reserved_bytes:
        return
    most = format_size(trial.setting.limit)
    what = f"let PyTorch reserve at most {most}, the least that serves all requests"
    if setting.conf != found.base.conf:
        changed = _in_words(setting.conf, found.base.conf)
        what = f"{changed}, and reserve no more than {most}"
    found.add("limit", what, found.call(trial.setting), trial)


def _add_higher_limit(
    search: Search, own: Setting, failure: OutOfMemory, found: KeptAdvice
) -> None:
    """Adds advice to raise the limit that refused a request.

    The advised limit is the lowest one under which all requests succeed.
    """
    free = failure.device_free_bytes
    most = AMPLE_MEMORY if free is None else failure.reserved_bytes + free
    trial = search.trial(replace(own, limit=most))
    if trial is None or not trial.works:
        return
    least, enough = failure.limit_bytes or failure.reserved_bytes, trial.result.peak_reserved_bytes
    tight = search.trial(replace(own, limit=enough))
    if tight is not None and tight.works:
        trial, most = tight, enough
    trial = search.least_limit(own, least, most) or trial
    limit = trial.setting.limit or most
    if found.total_bytes is not None and limit > found.total_bytes:
        return
    which = "the least that serves all requests" if free is None else "for which the card had room"
    what = f"raise the limit to {format_size(limit)}, {which}"
    found.add("limit", what, found.call(trial.setting), trial)


def _add_spill(search: Search, elastic: Trial | None, found: KeptAdvice) -> None:
    """Adds advice to give the elastic allocator less dedicated memory than the program needs.

    The rest of the program's memory then spills into shared memory.
    """
    if elastic is None:
        return
    room = search.limit or found.base.limit_bytes
    if found.failed and room:
        dedicated = room
    else:
        dedicated = int(_SPILL_TO * elastic.result.peak_allocated_bytes)
    dedicated = max(dedicated // (2 * MiB), 1) * 2 * MiB
    trial = search.trial(Setting("", allocator="elastic", dedicated=dedicated))
    if trial is None or trial.result.shared is None or not trial.result.shared.peak_bytes:
        return
    shared = trial.result.shared
    found.add(
        "spill",
        f"cap the card at {format_size(dedicated)} and spill {format_size(shared.peak_bytes)} "
        "to host memory",
        f"plimsoll run --policy spill --dedicated {dedicated // MiB}MiB",
        trial,
    )


def _add_zero_grad(
    search: Search,
    own: Setting,
    edited: tuple[Recording, Recording],
    found: KeptAdvice,
    *,
    is_known: bool,
) -> None:
    """Adds advice to free gradients at the end of each step, if the program keeps them longer."""
    before, after = (search.trial(own, one) for one in edited)
    found.add(
        "program",
        "free the gradients right after the optimizer's step",
        "optimizer.step(); optimizer.zero_grad(set_to_none=True)",
        after,
        "" if is_known else "plimsoll guesses which blocks are gradients",
        None if before is None else before.result,
    )


def _different(trials: list[Trial]) -> list[Trial]:
    """Keeps the best trial for each set of settings; `trials` is sorted, the best first.

    Also drops trials with superfluous settings. For example, drops the trial of settings A and B if
    the trial of A alone reserves no more memory.
    """
    kept: list[Trial] = []
    for trial in trials:
        keys = set(conf_keys(trial.setting.conf))
        mine = (keys, trial.setting.limit is not None)
        if any((set(conf_keys(one.setting.conf)), one.setting.limit is not None) == mine
               for one in kept):  # fmt: skip
            continue
        if any(
            set(conf_keys(one.setting.conf)) < keys and reserved_bytes(one) <= reserved_bytes(trial)
            for one in trials
        ):
            continue
        kept.append(trial)
    return kept
