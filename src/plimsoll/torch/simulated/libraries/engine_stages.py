"""The stages of a serving engine's start, noted while its own methods run."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.serving_use import ServingUse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from plimsoll.torch.simulated.serving_use import Stage
    from plimsoll.torch.simulated.simulation import Simulation


class EngineStages:
    """Fills in the simulation's `ServingUse` from an engine's methods and functions."""

    def __init__(self, simulation: Simulation, title: str, package: str) -> None:
        """Note nothing yet.

        Args:
            simulation: The cards on which the engine runs.
            title: The engine's name.
            package: Its package, which has its version.
        """
        self.simulation = simulation
        self._title, self._package = title, package

    def use(self) -> ServingUse:
        """Returns the engine's use of its card so far, empty at first."""
        use = self.simulation.serving
        if use is None:
            title = f"{self._title} {import_module(self._package).__version__}"
            use = self.simulation.serving = ServingUse(title)
        return use

    def staged(
        self,
        owner: Any,
        name: str,
        stage: Stage | None,
        learn: Callable[[ServingUse, Any, Any], None] | None = None,
        after: Stage | None = None,
    ) -> None:
        """Notes the stage while a method runs, and afterwards facts from its object.

        Args:
            owner: The method's class; one without the method is left as it is.
            name: The method's name.
            stage: The stage; None for the current one.
            learn: Called with the use, the object and the method's result.
            after: The stage that follows; None for the stage before.
        """
        method = getattr(owner, name, None)
        if method is None:
            return
        guarded = self.simulation.watchers.guarded

        @functools.wraps(method)
        def run(this: Any, *arguments: Any, **named: Any) -> Any:
            use = self.use()
            before, use.stage = use.stage, stage or use.stage
            with self._noting_failure(use):
                result = method(this, *arguments, **named)
            if learn is not None:
                guarded("a serving engine's memory", learn)(use, this, result)
            if after == "load":  # it started, perhaps with other settings after a refusal
                use.refusal = use.missing_bytes = use.fitting_len = None
            use.stage = after or before
            return result

        setattr(owner, name, run)

    def note_refusal(
        self,
        owner: Any,
        name: str,
        kinds: tuple[type[Exception], ...],
        learn: Callable[[ServingUse, list[Any]], None] | None = None,
        is_refusal: Callable[[str], object] = bool,
    ) -> None:
        """Notes why a check of the engine's finds too little memory for a start.

        Args:
            owner: The module or class of the check; one without the check is left as it is.
            name: The check's name.
            kinds: The errors that it then raises.
            learn: Called with the use and the check's arguments.
            is_refusal: Whether the text of such an error is about memory.
        """
        check = getattr(owner, name, None)
        if check is None:
            return

        @functools.wraps(check)
        def checked(*arguments: Any, **named: Any) -> Any:
            try:
                return check(*arguments, **named)
            except kinds as error:
                if type(error).__name__ == "OutOfMemoryError" or not is_refusal(str(error)):
                    raise
                use = self.use()
                use.refusal = str(error)
                if learn is not None:
                    tell = self.simulation.watchers.guarded("what an engine lacks", learn)
                    tell(use, [*arguments, *named.values()])
                raise

        setattr(owner, name, checked)

    def note_graphs(self, use: ServingUse, taken: int, device: int) -> None:
        """Notes the memory that capturing CUDA graphs took of a card, with its bounds.

        Args:
            use: The account to fill in.
            taken: Bytes, by the engine's own account.
            device: The card.
        """
        graphs = self.simulation.graphs
        least, most = (bound - graphs.taken[device] for bound in graphs.bounds(device))
        use.graph_bytes = taken
        if taken:
            use.graph_range_bytes = taken + least, taken + most

    @contextmanager
    def _noting_failure(self, use: ServingUse) -> Iterator[None]:
        """Note the innermost stage of an engine that runs out of memory.

        On a card the other workers go on, as far as their hosts do not wait; here they would wait.
        """
        try:
            yield
        except Exception as error:
            lacks_memory = type(error).__name__ == "OutOfMemoryError"
            lacks_memory = lacks_memory or self.simulation.driver_memory.refused(error)
            if lacks_memory and use.failed_in is None:
                use.failed_in = use.stage
                self.simulation.give_up("ran out of memory")
            raise
