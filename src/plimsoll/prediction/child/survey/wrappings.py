"""Where models are wrapped so that several ranks train them, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plimsoll.base.watchers import standing_in
from plimsoll.prediction.child.survey.places import innermost_place
from plimsoll.prediction.survey import Wrapping

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from plimsoll.base.watchers import Watchers
    from plimsoll.prediction.survey import Place, Scalar

_KINDS = ("DistributedDataParallel", "FullyShardedDataParallel")


class Wrappings:
    """Hears of every model that is wrapped.

    Args:
        watchers: Which guard what is noted.
        any_optimizer: Whether there is an optimizer yet.
    """

    def __init__(self, watchers: Watchers, any_optimizer: Callable[[], bool]) -> None:
        self._watchers = watchers
        self._any_optimizer = any_optimizer
        self._found: dict[Place | None, tuple[Any, bool]] = {}

    def install(self, torch: ModuleType) -> None:
        """Listen."""
        base = torch.nn.Module
        make = base.__init__

        note = self._watchers.guarded("models that are wrapped", self._note)

        def noted(module: Any, *given: Any, **named: Any) -> None:
            make(module, *given, **named)
            if type(module).__name__ in _KINDS:
                note(module)

        base.__init__ = standing_in(make, noted)

    def _note(self, module: Any) -> None:
        # Those that a wrapper makes of a model's parts have the same place, and come later.
        self._found.setdefault(innermost_place(), (module, not self._any_optimizer()))

    def uses(self) -> list[Wrapping]:
        """The wrappings, in their order."""
        return [
            Wrapping(type(module).__name__, made, _settings(module), comes_first)
            for made, (module, comes_first) in self._found.items()
        ]


def _settings(module: Any) -> dict[str, Scalar]:
    found: dict[str, Scalar] = {}
    if hasattr(module, "gradient_as_bucket_view"):
        found["gradient_as_bucket_view"] = bool(module.gradient_as_bucket_view)
    strategy = getattr(module, "sharding_strategy", None)
    if strategy is not None:
        found["sharding_strategy"] = str(strategy.name)
    return found
