"""Environment variables that keep experiment trackers and model hubs off the network.

Each variable is documented by the tool that reads it. A script that asks for a connection
explicitly, for example by `wandb.init(mode="online")`, overrides the tracker's variable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

OFFLINE = {
    "CLEARML_OFFLINE_MODE": "1",  # ClearML
    "COMET_START_ONLINE": "0",  # Comet
    "DVC_NO_ANALYTICS": "1",  # DVC
    "DVC_STUDIO_OFFLINE": "1",  # DVCLive
    "HF_DATASETS_OFFLINE": "1",  # datasets
    "HF_HUB_DISABLE_TELEMETRY": "1",  # huggingface_hub
    "HF_HUB_OFFLINE": "1",  # huggingface_hub, and libraries that use it
    "NEPTUNE_MODE": "offline",  # Neptune
    "SWANLAB_MODE": "disabled",  # SwanLab
    "TRANSFORMERS_OFFLINE": "1",  # transformers
    "WANDB_MODE": "disabled",  # Weights & Biases: "offline" would start a program that writes
}
_MLFLOW = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")
_LOCAL = ("", "file", "sqlite")


_HUBS = ("HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def offline(environment: Mapping[str, str], *, with_hubs: bool = False) -> dict[str, str]:
    """Returns the variables to set in addition to `environment`.

    With `with_hubs` model hubs stay reachable, because scripts only read from them.

    MLflow has no variable that keeps it offline. If `environment` names a server for MLflow, the
    result names the folder `mlruns` instead.
    """
    hubs = _HUBS if with_hubs else ()
    settings = {name: value for name, value in OFFLINE.items() if name not in hubs}
    for name in _MLFLOW:
        scheme, _, _ = environment.get(name, "").rpartition(":/")
        if scheme.split(":")[0] not in _LOCAL or environment.get(name) == "databricks":
            settings[name] = "mlruns"
    return settings
