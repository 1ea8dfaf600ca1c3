"""Records the memory that a serving engine's sleep mode frees, and the memory that waking takes."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plimsoll import _core

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.torch.simulated.libraries.engine_stages import EngineStages


@dataclass(frozen=True)
class _Held:
    """The memory that a process holds at one time.

    Attributes:
        card_bytes: Memory of its card.
        mapped_bytes: The part of `card_bytes` that the program allocated by the driver API.
        host_bytes: Host memory in use that GPUs can reach, most of it page-locked.
    """

    card_bytes: int
    mapped_bytes: int
    host_bytes: int


class EngineSleep:
    """Wraps the methods by which an engine sleeps and wakes.

    An engine may go to sleep, or wake up, in several calls of a method.

    Attributes:
        _level: The level of the engine's last sleep; None if the engine has no levels.
        _before: The memory that was held before the first call of a sleep; None while awake.
        _woken_bytes: The memory that waking up has taken since the last sleep.
    """

    _level: int | None = None
    _before: _Held | None = None
    _woken_bytes = 0

    def __init__(self, stages: EngineStages) -> None:
        """Makes an object that notes nothing until `watch` is called.

        Args:
            stages: The engine's stages. The memory is noted in their `ServingUse`.
        """
        self._stages = stages
        self._simulation = stages.simulation

    def watch(
        self,
        owner: Any,
        sleep: str,
        wake_up: str,
        level_of: Callable[..., int | None] = lambda *_, **__: None,
    ) -> None:
        """Wraps `sleep` and `wake_up`, to note the memory and the engine's stage at each call.

        Args:
            owner: The class of the two methods. If it lacks one of them, `watch` does nothing.
            sleep: The name of the method that frees memory.
            wake_up: The name of the method that takes memory again.
            level_of: Returns the level of a sleep from the arguments of `sleep`. It returns None if
                the engine has no levels.
        """
        if not (hasattr(owner, sleep) and hasattr(owner, wake_up)):
            return
        go_to_sleep, wake = getattr(owner, sleep), getattr(owner, wake_up)
        guarded = self._simulation.watchers.guarded

        @functools.wraps(go_to_sleep)
        def noted_sleep(this: Any, *arguments: Any, **named: Any) -> Any:
            before = guarded("a serving engine's sleep", self._held)()
            result = go_to_sleep(this, *arguments, **named)
            if before is not None:
                learn = guarded("a serving engine's sleep", self._learn_sleep)
                learn(level_of(*arguments, **named), before)
            return result

        @functools.wraps(wake)
        def noted_wake(this: Any, *arguments: Any, **named: Any) -> Any:
            before = guarded("a serving engine's waking", self._held)()
            guarded("a serving engine's waking", self._learn_room)()
            result = wake(this, *arguments, **named)
            if before is not None:
                guarded("a serving engine's waking", self._learn_waking)(before)
            return result

        setattr(owner, sleep, noted_sleep)
        setattr(owner, wake_up, noted_wake)
        self._stages.staged(owner, sleep, "sleep")
        self._stages.staged(owner, wake_up, "wake_up")

    def _held(self) -> _Held:
        library, machine = self._simulation.library, self._simulation.machine
        device = int(library.lib.plimsoll_current_device())
        pinned = library.pinned_statistics()
        cached = pinned.allocated_bytes.current - pinned.active_bytes.current
        return _Held(
            machine.gpus[device].dedicated_used_bytes,
            _core.use_by_cuda(device)[0],
            machine.shared_total_bytes - machine.shared_free_bytes - cached,
        )

    def _learn_sleep(self, level: int | None, before: _Held) -> None:
        asleep = self._stages.use().sleep_of(level)
        if self._before is None:
            self._level, self._before, self._woken_bytes = level, before, 0
            asleep.times += 1
        after = self._held()
        asleep.freed_bytes = self._before.card_bytes - after.card_bytes
        asleep.unmapped_bytes = self._before.mapped_bytes - after.mapped_bytes
        asleep.left_bytes = after.card_bytes
        asleep.host_bytes = after.host_bytes - self._before.host_bytes

    def _learn_room(self) -> None:
        device = int(self._simulation.library.lib.plimsoll_current_device())
        free = self._simulation.card_memory(device)[0]
        # `_woken_bytes` is what the earlier calls took. So the sum is the memory that was free
        # before the first call.
        self._stages.use().sleep_of(self._level).free_bytes = free + self._woken_bytes

    def _learn_waking(self, before: _Held) -> None:
        self._before = None
        self._woken_bytes += self._held().card_bytes - before.card_bytes
        asleep = self._stages.use().sleep_of(self._level)
        asleep.waking_bytes = max(asleep.waking_bytes or 0, self._woken_bytes)
