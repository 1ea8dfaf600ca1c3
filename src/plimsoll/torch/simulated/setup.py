"""The settings of a simulation: the cards, and the behaviour of their memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from plimsoll.engine.gpus.profiles import gpu_profile

if TYPE_CHECKING:
    from plimsoll.engine.gpus.profiles import GpuProfile
    from plimsoll.engine.protocol import AllocatorName, SpillPolicyName
    from plimsoll.engine.simulator.machine import DriverName


ValuesName = Literal["automatic", "real", "none"]
UnknownName = Literal["balanced", "most", "least"]


@dataclass(frozen=True)
class Setup:
    """A machine with simulated GPUs, and the allocator on each.

    Attributes:
        gpus: Names of the cards, one a device, as `gpu_profile` takes them.
        driver: "linux", or "wddm" for Windows', which spills into host memory.
        conf: Settings like PYTORCH_CUDA_ALLOC_CONF; "" uses the environment's and the program's.
        allocator: "native" (PyTorch's rules), "elastic" or "uncached".
        wheel: Whether PyTorch's own allocator from its wheel serves as "native".
        plan: The file of a plan of places, which "elastic" follows; None without one.
        policy: "strict" or "spill"; None for the driver's behaviour.
        dedicated_bytes: The part of each card's memory for the program; None for all.
        used_bytes: The part of each card that other processes already use.
        host_memory_bytes: The machine's memory; None for as much as this one has.
        unlimited: Whether the cards have as much memory as the program requests.
        values: Which values are computed. "automatic" stays within a budget of bytes and
            operations, "real" computes all, and "none" only the few that lengths and control flow
            depend on.
        unknown: How values that are not computed are chosen: "balanced", or for "most" or "least"
            of the quantities that sizes depend on.
        seed: The seed of the drawn values.
        is_eager: Whether torch.compile runs its function eagerly.
        is_recorded: Whether PyTorch's history is kept from the start, which takes host time.
    """

    gpus: tuple[str, ...]
    driver: DriverName = "linux"
    conf: str = ""
    allocator: AllocatorName = "native"
    wheel: bool = False
    plan: str | None = None
    policy: SpillPolicyName | None = None
    dedicated_bytes: int | None = None
    used_bytes: int = 0
    host_memory_bytes: int | None = None
    unlimited: bool = False
    values: ValuesName = "automatic"
    unknown: UnknownName = "balanced"
    seed: int = 0
    is_eager: bool = False
    is_recorded: bool = False

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Setup:
        """Returns the inverse of `asdict`, also of its JSON."""
        return cls(**{**values, "gpus": tuple(values["gpus"])})

    def profiles(self) -> list[GpuProfile]:
        """Returns the cards.

        Raises:
            InputError: If a card is unknown.
        """
        return [self._profile(name) for name in self.gpus]

    def _profile(self, name: str) -> GpuProfile:
        profile = gpu_profile(name)
        total = profile.total_bytes - self.used_bytes
        if self.dedicated_bytes is None:
            return replace(profile, total_bytes=total)
        # The program gets dedicated_bytes whatever it loads, so the context has one size.
        total = min(total, self.dedicated_bytes + profile.context_bytes)
        return replace(profile, total_bytes=total, context_parts={})
