"""Makes up the missing weights of diffusers' pipelines from the pipelines' configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.libraries.made_up import tell_made_up
from plimsoll.torch.simulated.libraries.safetensors import new_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def make_missing_parts(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads `diffusers.models.modeling_utils`, and lets models load without their files.

    The weights are those of a new model. They are loaded as if they came from a file.
    """
    execute()
    find = module._get_model_file

    def find_or_make(name: Any, *, weights_name: str, subfolder: Any = None, **named: Any) -> Any:
        try:
            return find(name, weights_name=weights_name, subfolder=subfolder, **named)
        except OSError:
            if not weights_name.endswith(".safetensors"):
                raise
        part = f"{name}/{subfolder}" if subfolder else str(name)
        tell_made_up(
            f"the weights of {part} are not here: they are made up, with the shapes of its "
            "configuration"
        )
        is_half = ".fp16." in weights_name
        return new_checkpoint(part, lambda: _weights(str(name), subfolder, is_half=is_half))

    module._get_model_file = find_or_make  # type: ignore[attr-defined]


def _weights(name: str, subfolder: str | None, *, is_half: bool) -> dict[str, Any]:
    """Returns the weights of a new model, made from its configuration."""
    import diffusers
    import torch

    config = diffusers.AutoModel.load_config(name, subfolder=subfolder, local_files_only=True)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        model = getattr(diffusers, config["_class_name"]).from_config(config)
    weights: dict[str, Any] = (model.half() if is_half else model).state_dict()
    return weights
