"""The engines that serve this process's GPUs, real or simulated."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError
from plimsoll.engine.real_gpus import count_gpus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.engine.protocol import Engine, Engines

_NOT_INSTALLED = (
    "plimsoll's allocator is not in place: start the script with `plimsoll run`, or call "
    "plimsoll.install() before the first tensor on a GPU"
)


_engines: Engines | None = None


def set_engines(engines: Engines) -> None:
    """Registers the engines that serve this process from now on."""
    global _engines
    _engines = engines


def current_engines() -> Engines | None:
    """Returns the engines that serve this process; None if plimsoll is not installed in it."""
    return _engines


def allocator_name() -> str | None:
    """Returns the name of plimsoll's allocator that serves this process; None without plimsoll.

    If a GPU's driver does not offer CUDA's virtual memory management, the elastic allocator falls
    back to PyTorch's rules. The name is then "native".
    """
    if _engines is None:
        return None
    opened = _engines.opened().values()
    fell_back = any(getattr(engine, "fell_back", None) is not None for engine in opened)
    return "native" if fell_back else _engines.allocator


def _installed() -> Engines:
    if _engines is None:
        raise InputError(_NOT_INSTALLED)
    return _engines


def check_elastic() -> None:
    """Checks that the elastic allocator is in use. Regions and shared memory work only with it.

    Raises:
        InputError: If the elastic allocator does not serve this process.
    """
    name = _installed().allocator
    if name != "elastic":
        raise InputError(
            f"regions and shared memory need the elastic allocator, and {name} is in place: choose "
            "--allocator elastic, or plimsoll.install()"
        )


def engine_of(device: int | None = None) -> Engine:
    """Returns the engine of a GPU, by default of the current one.

    Raises:
        InputError: If plimsoll's allocator is not installed, or there is no such GPU.
    """
    return _installed().open(device_number(device))


def device_number(device: int | None = None) -> int:
    """Returns a GPU's number, by default PyTorch's current one; 0 in a program without PyTorch.

    Raises:
        InputError: If there is no such GPU.
    """
    torch = sys.modules.get("torch")
    # Calls device_count() to find out whether there is a GPU. torch.cuda.is_available() may
    # initialize CUDA, and then CUDA fails in forked processes.
    if torch is not None and (count := torch.cuda.device_count()) > 0:
        index = torch.cuda.current_device() if device is None else device
    else:
        count = count_gpus()
        index = 0 if device is None else device
    if not 0 <= index < count:
        raise InputError(f"there is no GPU {index}; there are {count}")
    return index


def opened_engine(device: int) -> Engine | None:
    """Returns the engine of a GPU; None if plimsoll's allocator has not used the GPU yet."""
    return None if _engines is None else _engines.opened().get(device)


def engines_in_use() -> Mapping[int, Engine]:
    """Returns the engine of each GPU that plimsoll's allocator has used so far, by GPU number.

    Raises:
        InputError: If plimsoll's allocator is not installed.
    """
    return _installed().opened()
