"""Where the tiers' functions find the engines of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.errors import InputError

if TYPE_CHECKING:
    from plimsoll import _core

_NOT_INSTALLED = (
    "plimsoll's allocator is not in place: start the script with `plimsoll run`, or call "
    "plimsoll.install() before the first tensor on a GPU"
)


def check_elastic() -> None:
    """Whether requests can be placed in this process.

    Raises:
        InputError: If another allocator than plimsoll's elastic one serves it.
    """
    from plimsoll.torch.install import installed_engines

    engines = installed_engines()
    if engines is None:
        raise InputError(_NOT_INSTALLED)
    if engines.allocator != "elastic":
        raise InputError("regions and shared memory need the elastic allocator; native is in place")


def engine_of(device: int | None = None) -> _core.LiveEngine:
    """The engine of a GPU, by default of the current one.

    Raises:
        InputError: If plimsoll's allocator is not installed, or there is no such GPU.
    """
    from plimsoll.torch.install import installed_engines

    engines = installed_engines()
    if engines is None:
        raise InputError(_NOT_INSTALLED)
    import torch

    count = torch.cuda.device_count()
    index = torch.cuda.current_device() if device is None else device
    if not 0 <= index < count:
        raise InputError(f"there is no GPU {index}; there are {count}")
    return engines.open(index)


def shared_allocated_bytes(device: int) -> int:
    """What of a GPU's live blocks is in shared memory."""
    from plimsoll.torch.install import installed_engines

    engines = installed_engines()
    engine = None if engines is None else engines.opened().get(device)
    return 0 if engine is None else engine.shared_allocated_bytes


def engines_in_use() -> dict[int, _core.LiveEngine]:
    """The engines of all GPUs that were used so far.

    Raises:
        InputError: If plimsoll's allocator is not installed.
    """
    from plimsoll.torch.install import installed_engines

    engines = installed_engines()
    if engines is None:
        raise InputError(_NOT_INSTALLED)
    return engines.opened()
