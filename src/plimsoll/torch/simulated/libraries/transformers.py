"""Makes up missing weights of transformers' models from their configurations."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.libraries.made_up import tell_made_up
from plimsoll.torch.simulated.libraries.safetensors import is_made, new_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def name_missing_configuration(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads `transformers.configuration_utils`, and replaces its error for a missing configuration.

    The new error explains what plimsoll needs.
    """
    execute()
    # Before transformers 5 the name was PretrainedConfig.
    base = getattr(module, "PreTrainedConfig", None) or module.PretrainedConfig
    get = base.get_config_dict.__func__

    def get_config_dict(cls: Any, /, *arguments: Any, **named: Any) -> Any:
        try:
            return get(cls, *arguments, **named)
        except OSError as error:
            name = arguments[0] if arguments else named.get("pretrained_model_name_or_path")
            raise OSError(
                f"plimsoll makes up what is missing of {name!s} once its configuration is here: "
                "there is no config.json; give from_pretrained a folder with that file, or set "
                f"HF_HOME to a cache that has it ({str(error).splitlines()[0]})"
            ) from error

    base.get_config_dict = classmethod(get_config_dict)


def make_missing_weights(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads `transformers.modeling_utils`, and lets models load without their files.

    The weights are those of a new model. They are loaded as if they came from a file.
    """
    execute()
    if not hasattr(module, "LoadStateDictConfig"):
        return  # before transformers 5
    find, choose_type = module._get_resolved_checkpoint_files, module._get_dtype
    load = module.PreTrainedModel._load_pretrained_model
    types: dict[str, Any] = {}  # the type of a made-up checkpoint's weights, by its path
    models: dict[str, Any] = {}  # the model that reads a made-up checkpoint, by its path

    def find_or_make(*arguments: Any, **named: Any) -> Any:
        try:
            return find(*arguments, **named)
        except OSError:
            name = named.get("pretrained_model_name_or_path")
            if name is None or named.get("gguf_file") is not None:
                raise
            path = new_checkpoint(
                str(name), lambda: _weights(models.pop(path), types.pop(path, "float32"))
            )
            return [path], None

    def get_type(wanted: Any, files: Any, config: Any, *arguments: Any) -> Any:
        if is_made(files):
            types[files[0]] = declared = getattr(config, "dtype", None) or "float32"
            wanted = declared if wanted == "auto" else wanted
        return choose_type(wanted, files, config, *arguments)

    def load_or_make(model: Any, state: Any, files: Any, load_config: Any, **named: Any) -> Any:
        if state is None and is_made(files):
            name = load_config.pretrained_model_name_or_path
            quantizer = load_config.hf_quantizer
            if quantizer is not None and quantizer.pre_quantized:
                method = quantizer.quantization_config.quant_method
                raise OSError(
                    f"plimsoll does not make up weights that are quantized already ({name}, "
                    f"{method}): have its files here, or load a checkpoint that is not"
                )
            models[files[0]] = model
            tell_made_up(
                f"the weights of {name} are not here: they are made up, with the shapes and types "
                "of its configuration",
            )
        return load(model, state, files, load_config, **named)

    module._get_resolved_checkpoint_files = find_or_make  # type: ignore[attr-defined]
    module._get_dtype = get_type  # type: ignore[attr-defined]
    module.PreTrainedModel._load_pretrained_model = staticmethod(load_or_make)


def _weights(model: Any, dtype: Any) -> dict[str, Any]:
    """Returns the weights of a new model, under the names that a checkpoint's file has for them."""
    import torch
    from transformers.core_model_loading import revert_weight_conversion

    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        new = type(model)._from_config(config, dtype=dtype)
    tied = set(getattr(new, "all_tied_weights_keys", None) or ())
    state = {name: tensor for name, tensor in new.state_dict().items() if name not in tied}
    named: dict[str, Any] = revert_weight_conversion(new, state)
    return named
