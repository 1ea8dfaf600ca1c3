"""Notes the lines that wrap models for training on several ranks, and the kinds of wrappers."""

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
    """Observes every wrapping of a model.

    Args:
        watchers: The object that keeps errors of the observing code from the program.
        any_optimizer: A function that returns whether an optimizer exists yet.
    """

    def __init__(self, watchers: Watchers, any_optimizer: Callable[[], bool]) -> None:
        self._watchers = watchers
        self._any_optimizer = any_optimizer
        self._found: dict[Place | None, tuple[Any, bool]] = {}

    def install(self, torch: ModuleType) -> None:
        """Begins to observe new wrappers."""
        base = torch.nn.Module
        make = base.__init__

        note = self._watchers.guarded("models that are wrapped", self._note)

        def noted(module: Any, *given: Any, **named: Any) -> None:
            make(module, *given, **named)
            if type(module).__name__ in _KINDS:
                note(module)

        base.__init__ = standing_in(make, noted)

    def _note(self, module: Any) -> None:
        # One line can make several wrappers: first that of the whole model, and then, from inside
        # it, those of the model's parts. Only the first wrapper of a line counts.
        self._found.setdefault(innermost_place(), (module, not self._any_optimizer()))

    def uses(self) -> list[Wrapping]:
        """Returns the wrappings in the order in which they were made."""
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
