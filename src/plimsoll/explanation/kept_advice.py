"""Decides which changes become advice.

A trial is the replay of a recording under a change. The change becomes advice if its trial saves
enough memory, or if the trial serves the requests that failed in the recording.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from plimsoll.base.units import MiB
from plimsoll.explanation.parts import Advice
from plimsoll.explanation.search import conf_keys, conf_text

if TYPE_CHECKING:
    from plimsoll.engine.replays.parts import ReplayResult
    from plimsoll.explanation.parts import AdviceCost, AdviceKind
    from plimsoll.explanation.search import Setting, Trial

LEAST_SHARE = 0.02
"""The share of peak reserved memory that advice must save."""
_LEAST_SAVED = 2 * MiB
_FRACTION = "per_process_memory_fraction"


class KeptAdvice:
    """Collects the advice for one recording.

    Attributes:
        base: The replay under the recorded settings.
        failed: Whether a request failed.
        total_bytes: The memory of the card, if it is known.
        advice: The advice so far.
    """

    def __init__(self, base: ReplayResult, *, failed: bool, total_bytes: int | None) -> None:
        self.base = base
        self.failed = failed
        self.total_bytes = total_bytes
        self.advice: list[Advice] = []

    def add(
        self,
        kind: AdviceKind,
        what: str,
        how: str,
        trial: Trial | None,
        note: str = "",
        against: ReplayResult | None = None,
    ) -> None:
        """Keeps a change as advice if its trial saves enough, or serves the requests that failed.

        Args:
            kind: The kind of change.
            what: The change in words.
            how: The setting or the call.
            trial: The trial; None if the change was not tried.
            note: A remark that the user reads with the advice, such as a doubt or a cost; or "".
            against: The replay that `trial` is compared with; None for `base`.
        """
        if trial is None or not trial.works:
            return
        before = against or self.base
        enough = max(_LEAST_SAVED, LEAST_SHARE * before.peak_reserved_bytes)
        if not self.failed and before.peak_reserved_bytes - _on_card(trial.result) < enough:
            return
        self._keep(kind, what, how, trial, before, note)

    def add_leak(
        self, what: str, how: str, trial: Trial | None, against: ReplayResult | None
    ) -> None:
        """Keeps advice on a leak even if it saves little, because a leak grows without end.

        Args:
            what: The change in words.
            how: A line of code, or a command.
            trial: The replay without the leak; None if that was not tried.
            against: The replay with the leak, to compare with; None if that was not tried.
        """
        if trial is not None and against is not None:
            self._keep("leak", what, how, trial, against, "")
            return
        self.advice.append(
            Advice(
                kind="leak",
                what=what,
                how=how,
                cost="nothing",
                saves_bytes=0,
                peak_reserved_bytes=self.base.peak_reserved_bytes,
                num_alloc_retries=self.base.num_alloc_retries,
                note="not tried: how much this saves is not known",
                was_tried=False,
            )
        )

    def call(self, setting: Setting) -> str:
        """Returns the code that applies a setting. The limit, if there is one, is rounded up."""
        has_conf = setting.conf != self.base.conf
        if setting.limit is None:
            return f"PYTORCH_CUDA_ALLOC_CONF={setting.conf}"
        # PyTorch rounds fraction * memory down, so the code asks for one byte more.
        share = f"{setting.limit + 1} / torch.cuda.mem_get_info()[1]"
        if self.total_bytes:
            share = f"{math.ceil(setting.limit / self.total_bytes * 1e6) / 1e6:.6f}"
            if has_conf:
                parts = conf_keys(setting.conf) | {_FRACTION: f"{_FRACTION}:{share}"}
                return f"PYTORCH_CUDA_ALLOC_CONF={conf_text(parts)}"
        limit = f"torch.cuda.set_{_FRACTION}({share})"
        if has_conf:
            return f'torch.cuda.memory._set_allocator_settings("{setting.conf}"); {limit}'
        return limit

    def drop_needless_limits(self) -> None:
        """Drops advice that combines a setting with a limit but saves no more than a mere limit."""
        limits = [one.saves_bytes for one in self.advice if one.kind == "limit"]
        self.advice = [
            one
            for one in self.advice
            if one.kind != "setting"
            or _FRACTION not in one.how
            or one.saves_bytes > max(limits, default=-1)
        ]

    def _keep(
        self,
        kind: AdviceKind,
        what: str,
        how: str,
        trial: Trial,
        before: ReplayResult,
        note: str,
    ) -> None:
        result = trial.result
        saves = before.peak_reserved_bytes - _on_card(result)
        self.advice.append(
            Advice(
                kind=kind,
                what=what,
                how=how,
                cost=self._cost(trial, before),
                saves_bytes=0 if self.failed else max(saves, 0),
                peak_reserved_bytes=result.peak_reserved_bytes,
                peak_reserved_range_bytes=result.peak_reserved_range_bytes,
                peak_dedicated_bytes=None if result.shared is None else _on_card(result),
                serves_failed_requests=trial.works if self.failed else None,
                num_alloc_retries=result.num_alloc_retries,
                driver_seconds=result.driver_seconds - before.driver_seconds,
                bus_seconds=0.0 if result.shared is None else result.shared.transfer_seconds,
                note=note,
            )
        )

    def _cost(self, trial: Trial, before: ReplayResult) -> AdviceCost:
        result, limit = trial.result, trial.setting.limit
        if result.shared is not None and result.shared.peak_bytes:
            return "bus"
        is_lower = limit is not None and (before.limit_bytes is None or limit < before.limit_bytes)
        if is_lower or result.num_alloc_retries > before.num_alloc_retries:
            return "time"
        return "nothing"


def _on_card(result: ReplayResult) -> int:
    return (
        result.peak_reserved_bytes if result.shared is None else result.shared.peak_dedicated_bytes
    )
