"""The settings of a simulation: its cards, and how their memory behaves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from plimsoll.base.units import GRANULE
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
        gpus: For each device, the name of its card, as `gpu_profile` takes it.
        driver: "linux", or "wddm" for Windows' driver, which spills into host memory.
        conf: Allocator settings in the form of PYTORCH_CUDA_ALLOC_CONF; "" for those of the
            environment and of the program.
        allocator: "native" (PyTorch's rules), "elastic" or "uncached".
        wheel: Whether "native" runs PyTorch's own allocator code, from its wheel.
        plan: The file with a plan of the blocks' addresses, which "elastic" follows; None without
            one.
        policy: "strict" lets a request on a full card fail, "spill" gives it host memory; None for
            the driver's behaviour.
        dedicated_bytes: The memory of each card that the program may use; None for all.
        used_bytes: The memory of each card that other processes already use.
        host_memory_bytes: The host memory of the simulated machine; None for this machine's.
        unlimited: Whether the cards have as much memory as the program requests.
        values: Which values are computed. "automatic" stays within a budget of bytes and
            operations, "real" computes all, and "none" only the few that lengths and control flow
            depend on.
        unknown: How plimsoll makes up values that it does not compute. "most" gives the largest
            sizes that depend on such values, "least" the smallest, and "balanced" medium ones.
        seed: The seed for the values that plimsoll makes up.
        is_eager: Whether torch.compile runs its function eagerly.
        is_recorded: Whether PyTorch's memory history is recorded from the start, which takes host
            time.
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
        """Makes an object from the result of `asdict`, which may have gone through JSON."""
        return cls(**{**values, "gpus": tuple(values["gpus"])})

    def profiles(self) -> list[GpuProfile]:
        """Returns the profiles of the cards.

        Raises:
            InputError: If a card is unknown.
        """
        return [self._profile(name) for name in self.gpus]

    def _profile(self, name: str) -> GpuProfile:
        profile = gpu_profile(name)
        total = profile.total_bytes - self.used_bytes
        if self.dedicated_bytes is None:
            return replace(profile, total_bytes=total)
        # The context's size is fixed here. Otherwise parts that CUDA loads later would take memory
        # from the program's `dedicated_bytes`. The driver allocates contexts in whole granules.
        context = -(-profile.context_bytes // GRANULE) * GRANULE
        total = min(total, self.dedicated_bytes + context)
        return replace(profile, total_bytes=total, context_bytes=context, context_parts={})
