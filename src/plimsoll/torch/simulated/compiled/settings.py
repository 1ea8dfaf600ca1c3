"""How PyTorch's compiler works for simulated GPUs: in this process, and in folders of its own.

A real run never reads what is kept here: keys of its caches hold the card's name and versions,
which a simulated card imitates.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.torch.building import versions
from plimsoll.torch.building.cache import cache_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from plimsoll.engine.gpus.profiles import GpuProfile

_FOLDER = "compiled"


def compiled_folder() -> Path:
    """Where all is kept that is compiled for simulated GPUs.

    Raises:
        InputError: As `cache_folder`.
    """
    return cache_folder() / _FOLDER


def is_generated(file: str) -> bool:
    """Whether a source file is the compiler's, not the program's."""
    return bool(file) and Path(file).is_relative_to(compiled_folder())


@cache
def triton_version() -> str | None:
    """Of the Triton that is installed; None without it."""
    found = importlib.util.find_spec("triton")
    if found is None or found.origin is None:  # a folder of that name is none
        return None
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:  # a build of the user's own
        return "unknown"


def folder_for(profiles: list[GpuProfile], library: str) -> Path:
    """The folder of these cards, under the installed versions; it is made.

    Args:
        profiles: The cards.
        library: The file of the simulated GPU, on whose times choices hang; its name says of what
            it is made.

    Raises:
        InputError: As `cache_folder`.
    """
    cards = hashlib.sha256(repr((profiles, library)).encode()).hexdigest()[:12]
    folder = compiled_folder() / f"torch{versions.torch_build()}-triton{triton_version()}-{cards}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def keep_in(folder: Callable[[], Path], module: ModuleType, execute: Callable[[], None]) -> None:
    """Load `torch._inductor.runtime.cache_dir_utils`, whatever the environment says.

    What was measured while fusing is forgotten: each run is to take the memory of a first one.
    """
    execute()
    place = folder()
    for measured in place.rglob("*.kernel_perf"):
        measured.unlink(missing_ok=True)
    folders = [str(place)]
    move = module.temporary_cache_dir

    @contextmanager
    def temporary_cache_dir(directory: str) -> Iterator[None]:
        """As PyTorch's, which saves an artifact to a folder so."""
        with move(directory):
            folders.append(str(Path(directory).absolute()))
            try:
                yield
            finally:
                folders.pop()

    module.temporary_cache_dir = temporary_cache_dir  # type: ignore[attr-defined]
    module.cache_dir = lambda: folders[-1]  # type: ignore[attr-defined]
    module.default_cache_dir = lambda: folders[-1]  # type: ignore[attr-defined]
    module.triton_cache_dir = lambda device: (  # type: ignore[attr-defined]
        f"{folders[-1]}/triton/{device}"
    )


def compile_here(module: ModuleType, execute: Callable[[], None]) -> None:
    """Load `torch._inductor.async_compile`: other processes have no simulated GPUs."""
    execute()
    module.get_compile_threads = lambda: 1  # type: ignore[attr-defined]
