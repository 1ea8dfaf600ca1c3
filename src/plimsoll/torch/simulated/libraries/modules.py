"""Which modules of libraries are loaded otherwise on simulated GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.torch.simulated.libraries.datasets import make_missing_rows
from plimsoll.torch.simulated.libraries.diffusers import make_missing_parts
from plimsoll.torch.simulated.libraries.safetensors import open_made_checkpoints
from plimsoll.torch.simulated.libraries.tokenizers import make_missing_tokenizers
from plimsoll.torch.simulated.libraries.transformers import (
    make_missing_weights,
    name_missing_configuration,
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
        "datasets.load": make_missing_rows,
        "diffusers.models.modeling_utils": make_missing_parts,
        "safetensors": open_made_checkpoints,
        "transformers.configuration_utils": name_missing_configuration,
        "transformers.modeling_utils": make_missing_weights,
        "transformers.tokenization_utils_base": make_missing_tokenizers,
    }
