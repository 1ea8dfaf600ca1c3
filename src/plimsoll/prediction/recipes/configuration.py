"""Finds a model's configuration: in a folder, a file, the hub's cache, or on the hub.

It reads only configurations, no weights. Files from the hub stay in the hub's cache. The simulated
run of the script has no network, and reads them from that cache.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from plimsoll.base.errors import InputError

Library = Literal["transformers", "diffusers", "timm"]

_FILE = "config.json"
_PIPELINE = "model_index.json"
_DENOISERS = ("transformer", "unet")


@dataclass(frozen=True)
class Configuration:
    """The configuration from which a library makes a model.

    Attributes:
        library: The library of the model.
        name: The argument with which the library loads the model: a path, or a model's name. timm's
            argument can have the prefix "hf-hub:" or "local-dir:".
        values: The contents of the configuration file; empty for a model built into timm.
        file: The path of the configuration file; None for a model built into timm.
        subfolder: For a pipeline, the subfolder that contains the model; otherwise None.
    """

    library: Library
    name: str
    values: dict[str, Any]
    file: Path | None = None
    subfolder: str | None = None


def find_configuration(name: str) -> Configuration:
    """Finds a model's configuration.

    Args:
        name: A folder, a file, a name on the hub, or the name of a timm model.

    Raises:
        InputError: If no configuration is found, or no supported library can use it.
    """
    path = Path(name)
    if path.name == _PIPELINE and path.is_file():
        path = path.parent
    if path.is_dir():
        return _found(str(path), {each: _in_folder(path, each) for each in (_FILE, _PIPELINE)})
    if path.is_file():
        return _found(str(path), {_FILE: path})
    if _is_of_timm(name):
        return Configuration("timm", name, {})
    file = _on_hub(name, _FILE)
    return _found(name, {_FILE: file, _PIPELINE: None if file else _on_hub(name, _PIPELINE)})


def _in_folder(folder: Path, name: str) -> Path | None:
    return folder / name if (folder / name).is_file() else None


def _found(name: str, files: dict[str, Path | None]) -> Configuration:
    """Returns the configuration of the model or pipeline that has these files.

    If `files` has a config.json, that file is used. If `files` has only a model_index.json, the
    model is a pipeline. Then the config.json in the folder of the pipeline's denoiser is used.
    """
    subfolder, file = None, files[_FILE]
    if file is None and (index := files.get(_PIPELINE)) is not None:
        parts = _read(index)
        subfolder = next((each for each in _DENOISERS if each in parts), None)
        if subfolder is None:
            raise InputError(f"{name}: is a pipeline without {' and '.join(_DENOISERS)}")
        inside = f"{subfolder}/{_FILE}"
        folder = Path(name)
        file = _in_folder(folder, inside) if folder.is_dir() else _on_hub(name, inside)
    if file is None:
        raise InputError(f"{name}: has no {_FILE}, and it is all that a recipe reads of a model")
    values = _read(file)
    library = _library_of(values)
    if library is None:
        raise InputError(
            f"{file}: names no model: there is no model_type (of transformers), _class_name (of "
            "diffusers) or architecture (of timm)"
        )
    if library == "timm":
        name = _name_for_timm(name, file)
    return Configuration(library, name, values, file, subfolder)


def _read(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file}: is no configuration in JSON: {error}") from None
    if not isinstance(values, dict):
        raise InputError(f"{file}: is no configuration: it holds no object")
    return values


def _library_of(values: dict[str, Any]) -> Library | None:
    keys: dict[str, Library] = {
        "_class_name": "diffusers",
        "model_type": "transformers",
        "architecture": "timm",
    }
    return next((library for key, library in keys.items() if values.get(key)), None)


def _name_for_timm(name: str, file: Path) -> str:
    """Returns the name as timm takes it, with the prefix "hf-hub:" or "local-dir:"."""
    if not Path(name).exists():
        return f"hf-hub:{name}"
    if file.name != _FILE:
        raise InputError(f"{file}: timm reads a configuration by the name {_FILE} only")
    return f"local-dir:{file.parent}"


def _is_of_timm(name: str) -> bool:
    """Returns whether timm is installed and has a model of this name, such as `resnet50.a1_in1k`.

    It looks in timm's files for the function that makes the model, because importing timm and
    torchvision takes seconds.
    """
    model = name.split(".")[0]
    timm = find_spec("timm") if re.fullmatch(r"\w+", model) else None
    if timm is None or timm.origin is None:
        return False
    function = re.compile(rf"^def {model}\(pretrained\b", re.MULTILINE)
    files = Path(timm.origin).with_name("models").glob("*.py")
    return any(function.search(each.read_text(encoding="utf-8")) for each in files)


def _on_hub(name: str, file: str) -> Path | None:
    """Returns a model's file from the cache or the hub; None if the model has no such file.

    Raises:
        InputError: If there is no such model, or the hub cannot be reached.
    """
    try:
        import huggingface_hub as hub
        from huggingface_hub import errors
    except ImportError:
        raise InputError(
            f"{name}: is no folder and no file; names on the hub need huggingface_hub: "
            "pip install huggingface_hub"
        ) from None
    try:
        cached = hub.try_to_load_from_cache(name, file)
        if isinstance(cached, str):
            return Path(cached)
        # A single request first shows whether the hub can be reached: `hf_hub_download` would retry
        # for half a minute.
        hub.get_hf_file_metadata(hub.hf_hub_url(name, file))
        return Path(hub.hf_hub_download(name, file))
    except errors.HFValidationError:
        raise InputError(f"{name}: is no folder, no file and no name on the hub") from None
    except errors.GatedRepoError:
        raise InputError(
            f"{name}: the hub gives it only to whom it knows; ask for it on its page, and log in "
            "with: hf auth login"
        ) from None
    except errors.RepositoryNotFoundError:
        raise InputError(
            f"{name}: is no folder and no file, and the hub has no such model, or none for all; "
            "log in to private ones with: hf auth login"
        ) from None
    except errors.RemoteEntryNotFoundError:
        return None
    except Exception as error:  # huggingface_hub passes on errors of several HTTP libraries
        raise InputError(
            f"{name}: is no folder, no file and not in the hub's cache, and the hub cannot be "
            f"asked ({_reason(error)}); where it can, run: hf download {name} {file}"
        ) from None


def _reason(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
