"""Records which stage a serving engine's start has reached, by wrapping the engine's methods."""

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
    """Wraps an engine's methods and functions, so that these fill in a `ServingUse`."""

    def __init__(self, simulation: Simulation, title: str, package: str) -> None:
        """Makes an object that notes nothing until `staged` or `note_refusal` is called.

        Args:
            simulation: The cards on which the engine runs.
            title: The engine's name.
            package: The engine's package, which has the version.
        """
        self.simulation = simulation
        self._title, self._package = title, package

    def use(self) -> ServingUse:
        """Returns the engine's `ServingUse`. Makes an empty one at the first call."""
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
        """Replaces a method by a function that also notes the engine's stage and calls `learn`.

        Args:
            owner: The method's class. Nothing is done if it lacks the method.
            name: The method's name.
            stage: The stage while the method runs; None to keep the current one.
            learn: Called after the method, with the `ServingUse`, the method's object (`self`), and
                what the method returned.
            after: The stage after the method has returned; None for the stage before the call.
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
            # In the stage "load" the engine serves requests. So it no longer matters why the engine
            # refused to start before.
            if after == "load":
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
        """Replaces a check of memory by a function that notes why the engine refuses to start.

        Args:
            owner: The check's module or class. Nothing is done if it lacks the check.
            name: The check's name.
            kinds: The errors that the check raises if there is too little memory.
            learn: Called after such an error, with the `ServingUse` and the check's arguments.
            is_refusal: Returns whether such an error is about memory, from the error's text.
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
        """Notes the memory that captured CUDA graphs took.

        Also notes the least and the most memory that these graphs may take on a real GPU.

        Args:
            use: The `ServingUse` to fill in.
            taken: The bytes, as the engine itself measured them.
            device: The card's index.
        """
        graphs = self.simulation.graphs
        least, most = (bound - graphs.taken[device] for bound in graphs.bounds(device))
        use.graph_bytes = taken
        if taken:
            use.graph_range_bytes = taken + least, taken + most

    @contextmanager
    def _noting_failure(self, use: ServingUse) -> Iterator[None]:
        """Notes in which stage the engine runs out of memory, and ends the other workers' waits.

        On real GPUs the hosts of the other workers continue at first, because only their GPUs wait
        for this worker's data. On simulated GPUs the hosts themselves wait. The data never comes,
        so `give_up` ends these waits.
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
