"""Which modules of other people's libraries are loaded otherwise on simulated GPUs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from plimsoll.torch.simulated.libraries import torchvision
from plimsoll.torch.simulated.libraries.dynamic_sizes import give_sizes
from plimsoll.torch.simulated.libraries.operations import simulate_operation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from plimsoll.torch.simulated.simulation import Simulation


def library_modules(
    simulation: Simulation,
) -> Mapping[str, Callable[[ModuleType, Callable[[], None]], None]]:
    """By name, how each is loaded: called with the module, and with what executes its code."""
    for name, kernel in torchvision.KERNELS.items():
        simulate_operation(name, kernel)
    return {
        "torch._library.fake_impl": partial(give_sizes, simulation),
    }
