"""Makes PyTorch's compiler work in this process, with caches that are only for simulated GPUs.

A run on a real card must not find these caches. PyTorch finds a cached result by the
installed versions and the card's name, and a simulated card has the name of a real one. So the
caches need folders of their own.
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
    """Makes and returns the folder of everything that is compiled for simulated GPUs.

    Only the user may write to the folder, because plimsoll loads libraries from it.

    Raises:
        InputError: If `cache_folder` raises it.
    """
    folder = cache_folder() / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_mode & 0o022:
        folder.chmod(0o700)  # an earlier version made it with the user's umask
    return folder


def is_generated(file: str) -> bool:
    """Returns whether PyTorch's compiler wrote a source file, rather than the program's author."""
    return bool(file) and Path(file).is_relative_to(cache_folder() / _FOLDER)


@cache
def triton_version() -> str | None:
    """Returns the version of the installed Triton; None without it."""
    found = importlib.util.find_spec("triton")
    if found is None or found.origin is None:  # missing, or a folder without `__init__.py`
        return None
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:  # a build without metadata
        return "unknown"


def folder_for(profiles: list[GpuProfile], library: str) -> Path:
    """Creates and returns the compiler's folder for these cards and the installed versions.

    Args:
        profiles: The cards.
        library: The file of the simulated GPU's library, whose name contains a digest of its
            sources. The compiler's choices depend on the times that this library computes.

    Raises:
        InputError: If `cache_folder` raises it.
    """
    cards = hashlib.sha256(repr((profiles, library)).encode()).hexdigest()[:12]
    folder = compiled_folder() / f"torch{versions.torch_build()}-triton{triton_version()}-{cards}"
    folder.mkdir(exist_ok=True)
    return folder


def keep_in(folder: Callable[[], Path], module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads `torch._inductor.runtime.cache_dir_utils`, and puts all caches into `folder`.

    Environment variables do not change the folder. Measurements of fused kernels are deleted, so
    that each run measures again and takes as much memory as a first run.
    """
    execute()
    place = folder()
    for measured in place.rglob("*.kernel_perf"):
        measured.unlink(missing_ok=True)
    folders = [str(place)]
    move = module.temporary_cache_dir

    @contextmanager
    def temporary_cache_dir(directory: str) -> Iterator[None]:
        """Moves the caches for a while; PyTorch calls this to save and load compiled graphs."""
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
    """Loads `torch._inductor.async_compile`, and keeps compilations in this process.

    The compiler's worker processes would have no simulated GPUs.
    """
    execute()
    module.get_compile_threads = lambda: 1  # type: ignore[attr-defined]
