"""Notes calls of cross_entropy, because logits are often a program's largest tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plimsoll.base.watchers import standing_in
from plimsoll.prediction.child.survey.places import innermost_place
from plimsoll.prediction.survey import LossUse
from plimsoll.torch.simulated.compiled.frames import let_through

if TYPE_CHECKING:
    from types import ModuleType

    from plimsoll.base.watchers import Watchers
    from plimsoll.prediction.survey import Place


class Losses:
    """Observes every call of cross_entropy."""

    def __init__(self, watchers: Watchers) -> None:
        self._watchers = watchers
        self._uses: dict[Place | None, LossUse] = {}

    def install(self, torch: ModuleType) -> None:
        """Begins to observe calls of cross_entropy."""
        functional = torch.nn.functional
        cross_entropy = functional.cross_entropy

        note = self._watchers.guarded("calls of cross_entropy", self._note)

        def noted(*given: Any, **named: Any) -> Any:
            if not torch.compiler.is_compiling():
                note(given[0] if given else named.get("input"))
            return cross_entropy(*given, **named)

        let_through(noted)
        functional.cross_entropy = standing_in(cross_entropy, noted)

    def uses(self) -> list[LossUse]:
        """Returns the noted calls, those with the largest logits first."""
        return sorted(self._uses.values(), key=lambda use: -use.logits_bytes)

    def _note(self, logits: Any) -> None:
        if not logits.is_cuda or not logits.requires_grad:
            return
        place = innermost_place()
        before = self._uses.get(place)
        classes = logits.shape[1] if logits.dim() > 1 else logits.shape[0]
        rows = logits.numel() // max(1, classes)
        size, count = logits.nbytes, 1
        if before is not None:
            size, count = max(size, before.logits_bytes), before.calls + 1
            rows = max(rows, before.rows)
        self._uses[place] = LossUse(place, size, rows, count)
