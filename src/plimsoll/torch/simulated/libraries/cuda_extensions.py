"""Raises a clear error if a running program compiles an extension that has CUDA sources.

An extension without CUDA sources is compiled and runs.
"""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

_SUFFIXES = {".cu", ".cuh"}


def refuse_extension(name: str, files: Iterable[str] = ()) -> NoReturn:
    """Raises an error that a program can catch to continue without its extension.

    Args:
        name: The extension's name.
        files: Its CUDA sources.

    Raises:
        NotImplementedError: Always. It is a `RuntimeError`, like PyTorch's error if an extension
            does not compile.
    """
    sources = ", ".join(files)
    raise NotImplementedError(
        f"plimsoll does not simulate the CUDA extension {name}"
        f"{f' ({sources})' if sources else ''}, which would be compiled for a GPU: on simulated "
        "GPUs define its operations with torch.library.define in its place, and say what they "
        "return and take with plimsoll.simulated_operation"
    )


def cuda_sources(files: Any) -> list[str]:
    """Returns the names of those files that need CUDA's compiler.

    Args:
        files: A path, or a list of paths.
    """
    paths = [files] if isinstance(files, (str, Path)) else files
    return [Path(path).name for path in paths if Path(path).suffix in _SUFFIXES]


def refuse_cuda_extensions(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads `torch.utils.cpp_extension`, and makes it refuse CUDA sources."""
    execute()
    build = module.BuildExtension.build_extensions

    def load_refusing(load: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(load)

        @functools.wraps(load)
        def load_unless_cuda(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            files = cuda_sources(given.get("sources", ()))
            if files or given.get("with_cuda") or given.get("cuda_sources"):
                refuse_extension(given["name"], files)
            return load(*args, **kwargs)

        return load_unless_cuda

    def build_unless_cuda(self: Any) -> None:
        for extension in self.extensions:
            files = cuda_sources(extension.sources)
            if files:
                refuse_extension(extension.name, files)
        build(self)

    for name in ("load", "load_inline"):
        setattr(module, name, load_refusing(getattr(module, name)))
    module.BuildExtension.build_extensions = build_unless_cuda
