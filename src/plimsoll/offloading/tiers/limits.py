"""The limits of each tier, and what happens when dedicated memory is used up.

The tiers are dedicated memory, which is the card's own, and shared memory: host memory that the GPU
uses over the bus.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from plimsoll.base.errors import InputError
from plimsoll.base.units import format_size, parse_memory, parse_size
from plimsoll.engine.current import engine_of
from plimsoll.engine.protocol import SpillPolicyName
from plimsoll.offloading.tiers.rebalancing import RebalanceTime, set_rebalance, watch_steps
from plimsoll.recordings.analysis.lines import NO_LINE, is_program, is_users, source_line

if TYPE_CHECKING:
    from types import FrameType

    from plimsoll.engine.protocol import Engine
    from plimsoll.recordings.events import Frame


class SpillWarning(UserWarning):
    """Warns that dedicated memory is used up and the program continues in shared memory.

    See `set_tiers`, and docs/tiers.md.
    """


@dataclass(frozen=True)
class Tiers:
    """The settings of a GPU's tiers; None keeps the present value.

    Attributes:
        policy: "strict": a request beyond dedicated memory fails. "spill": such a request gets the
            remaining dedicated memory, and shared memory for the rest.
        dedicated_bytes: The most dedicated memory that may be reserved.
        shared_bytes: The most host memory that may be reserved; by default half the host's memory.
        rebalance: "step": spilled memory returns to the card after an optimizer step, as far as
            there is room. "manual": only a call of `plimsoll.rebalance` brings it back.
    """

    policy: SpillPolicyName | None = None
    dedicated_bytes: int | None = None
    shared_bytes: int | None = None
    rebalance: RebalanceTime | None = None

    @classmethod
    def parse(
        cls,
        policy: str | None = None,
        dedicated: int | str | None = None,
        shared: int | str | None = None,
        rebalance: str | None = None,
    ) -> Tiers:
        """Parses a user's values.

        Raises:
            InputError: If a name is unknown or a size is invalid.
        """
        if rebalance is not None and rebalance not in get_args(RebalanceTime):
            raise InputError(f"unknown time to rebalance {rebalance!r}; there are step and manual")
        if policy is not None and policy not in get_args(SpillPolicyName):
            raise InputError(f"unknown policy {policy!r}; there are strict and spill")
        return cls(
            policy,  # type: ignore[arg-type]
            None if dedicated is None else parse_memory(dedicated),
            None if shared is None else parse_memory(shared),
            rebalance,  # type: ignore[arg-type]
        )

    def apply(self, engine: Engine) -> None:
        """Applies the settings to an engine.

        Raises:
            InputError: If a limit exceeds what the card has or what the host can lock for GPUs.
                Also if the engine has no tiers.
        """
        if self == Tiers():
            return
        _, card = engine.memory_info()
        _, host = engine.shared_info()
        if self.dedicated_bytes is not None and self.dedicated_bytes > card:
            raise InputError(
                f"{format_size(self.dedicated_bytes)} of dedicated memory is more than the card "
                f"has: {format_size(card)}"
            )
        if self.shared_bytes is not None and self.shared_bytes > host:
            raise InputError(
                f"{format_size(self.shared_bytes)} of shared memory is more than the host can "
                f"lock for GPUs: {format_size(host)}, half of its memory"
            )
        try:
            if self.shared_bytes is not None:
                engine.shared_limit = self.shared_bytes
            if self.policy is not None:
                _set_policy(engine, self.policy)
        except ValueError as error:
            raise InputError(str(error)) from None
        if self.dedicated_bytes is not None:
            engine.set_dedicated_limit(self.dedicated_bytes)
        if self.rebalance is not None:
            set_rebalance(engine, self.rebalance)


def set_tiers(
    *,
    policy: SpillPolicyName | None = None,
    dedicated: int | str | None = None,
    shared: int | str | None = None,
    rebalance: RebalanceTime | None = None,
    device: int | None = None,
) -> None:
    """Sets how much of each tier this program may use on a GPU, and what happens beyond it.

    Arguments left out keep their value. Memory that is reserved already is not released.

    >>> plimsoll.set_tiers(policy="spill", dedicated="6GiB", shared="32GiB")  # doctest: +SKIP

    Args:
        policy: "strict", the default: a request beyond dedicated memory raises
            `torch.OutOfMemoryError`. "spill": such a request gets shared memory, which is host
            memory that the GPU reaches over the bus. The first time, a `SpillWarning` is given. A
            request fails when dedicated and shared memory are used up. Matrix products on spilled
            operands run at a tenth of their speed or less.
        dedicated: The most dedicated memory to reserve, in bytes or as "6GiB".
        shared: The most host memory to reserve; by default half the host's memory.
        rebalance: "step", the default: spilled memory returns to the card after an optimizer step,
            as far as there is room. "manual": it returns only by `plimsoll.rebalance`.
        device: The GPU, by default the current one.

    Raises:
        InputError: If a size is invalid or too large, or plimsoll's elastic allocator is not
            installed.
    """
    Tiers.parse(policy, dedicated, shared, rebalance).apply(engine_of(device))


def rebalance(*, at_most: int | str | None = None, device: int | None = None) -> int:
    """Moves spilled memory back to the card, as far as there is room for it.

    The longest-lived memory returns first, since the next step will use it again. Memory placed in
    shared memory on purpose stays there. Addresses stay the same. Call this between steps, because
    it waits for the GPU. plimsoll itself calls it after optimizer steps (see `set_tiers`).

    >>> plimsoll.rebalance(at_most="1GiB")  # doctest: +SKIP
    1073741824

    Args:
        at_most: The most bytes to move.
        device: The GPU, by default the current one.

    Returns:
        The number of bytes moved.

    Raises:
        InputError: If plimsoll's elastic allocator is not installed.
    """
    try:
        return engine_of(device).rebalance(None if at_most is None else parse_size(at_most))
    except ValueError as error:
        raise InputError(str(error)) from None


_watched: set[int] = set()


def _set_policy(engine: Engine, policy: SpillPolicyName) -> None:
    engine.spills = policy == "spill"
    if policy == "spill":
        warn_of_spills(engine)
        watch_steps(engine)


def warn_of_spills(engine: Engine) -> None:
    """Makes plimsoll warn when a request on this GPU gets shared memory for the first time.

    Raises:
        ValueError: If the engine cannot spill.
    """
    if engine.handle not in _watched:
        engine.on_first_spill(lambda size: _warn(engine, size))
        _watched.add(engine.handle)


def _warn(engine: Engine, size: int) -> None:
    shared = format_size(engine.shared_allocated_bytes)
    frames = _frames()
    line = source_line(frames)
    where = "the backward pass" if line == NO_LINE else line
    asked = [*filter(is_users, frames), *filter(is_program, frames), ("plimsoll", 1, "")]
    file, number, _ = asked[0]
    warnings.warn_explicit(
        f"GPU memory is spent: a request of {format_size(size)} at {where} went on in shared "
        f"memory, which holds {shared} now; kernels use it over the bus, tens of times slower; "
        "plimsoll.memory_summary() shows both",
        SpillWarning,
        file,
        number,
    )


def _frames() -> list[Frame]:
    """Returns the call stack of this thread, innermost frame first."""
    frames = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return frames
