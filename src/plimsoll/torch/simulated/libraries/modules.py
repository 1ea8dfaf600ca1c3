"""Which modules of libraries with kernels of their own are loaded otherwise on simulated GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.torch.simulated.libraries.bitsandbytes import (
    expect_few_outliers,
    stand_in_for_its_library,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from plimsoll.torch.simulated.simulation import Simulation


def library_modules(
    simulation: Simulation,  # noqa: ARG001
) -> Mapping[str, Callable[[ModuleType, Callable[[], None]], None]]:
    """By name, how each is loaded: called with the module, and with what executes its code."""
    return {
        "bitsandbytes._ops": expect_few_outliers,
        "bitsandbytes.cextension": stand_in_for_its_library,
    }
