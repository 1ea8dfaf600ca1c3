"""What is simulated: the cards, and how memory behaves on them."""

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
        driver: "linux", or "wddm" for Windows', which goes on in the host's memory.
        conf: As PYTORCH_CUDA_ALLOC_CONF; "" for what the environment and the program say.
        allocator: "native" (PyTorch's rules), "elastic" or "uncached".
        wheel: PyTorch's own allocator, as its wheel brings it, serves as "native".
        plan: The file of a plan of places, which "elastic" follows; None for none.
        policy: "strict" or "spill"; None for what the driver does.
        dedicated_bytes: What of each card's memory there is for the program; None for all.
        used_bytes: What others already have of each card.
        host_memory_bytes: Of the machine; None for as much as this one has.
        unlimited: The cards have all the memory that is asked for.
        values: Which values are computed: "automatic", within a budget of bytes and operations;
            "real", all; "none", only the few that lengths and control flow hang on.
        unknown: What values are taken to be like that nobody computes: "balanced", "most" and
            "least" (of what sizes hang on).
        seed: Of what is drawn for them.
        is_eager: What torch.compile would compile runs as it is.
        is_recorded: PyTorch's history is kept from the start, which takes the host time.
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
        """The inverse of `asdict`, also by way of JSON."""
        return cls(**{**values, "gpus": tuple(values["gpus"])})

    def profiles(self) -> list[GpuProfile]:
        """The cards.

        Raises:
            InputError: If one is unknown.
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
