"""Parses the devices that batches can be copied to."""

from __future__ import annotations

from typing import Any

import torch

from plimsoll.base.errors import InputError
from plimsoll.engine.current import device_number


def parse_device(device: Any) -> Any:
    """Returns a device, or a device's name, as a `torch.device`.

    Raises:
        InputError: If there is no such device, or it is neither a GPU nor the host.
    """
    try:
        parsed = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"not a device: {device!r}") from error
    if parsed.type not in ("cuda", "cpu"):
        raise InputError(f"batches go to a GPU (cuda) or stay on the host (cpu), not to {parsed}")
    if parsed.type == "cuda":
        device_number(parsed.index or 0)
    return parsed


def with_number(device: Any) -> Any:
    """Returns the device with its number: "cuda" alone becomes the current GPU."""
    if device.type == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", device_number(device.index))
