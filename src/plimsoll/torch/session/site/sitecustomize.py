"""Gives a process simulated GPUs just before the process imports PyTorch.

A process that does not import PyTorch loses no time. When Python starts, it imports the first
`sitecustomize` on its path. `inherited` puts this file's folder first on that path. This file then
runs the next `sitecustomize` on the path, which may be the user's own.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing `typing` would take longer than this whole file
if TYPE_CHECKING:
    from typing import Any

_ASKED = "PLIMSOLL_SIMULATED"


class _BeforePyTorch:
    """Begins the simulation when a program imports PyTorch, but not on a mere `find_spec`."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        from importlib.machinery import PathFinder
        from importlib.util import find_spec

        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        loader = spec.loader
        create = loader.create_module

        def create_module(spec: Any) -> Any:
            sys.meta_path.remove(self)
            _begin()
            anew = find_spec(name)  # the simulation may have changed how PyTorch is found
            assert anew is not None
            assert anew.loader is not None
            loader.exec_module = anew.loader.exec_module  # type: ignore[method-assign]
            return create(spec)

        loader.create_module = create_module  # type: ignore[method-assign]
        return spec


def _begin() -> None:
    import importlib
    import json

    asked = json.loads(os.environ[_ASKED])
    try:
        module = importlib.import_module(asked["module"])
    except ImportError as error:  # a Python of another environment, without plimsoll
        print(f"plimsoll: this process has no simulated GPUs: {error}", file=sys.stderr)
        return
    getattr(module, asked["function"])(asked["values"])


def _run_the_next() -> None:
    """Imports the next `sitecustomize` on the path, which this one hides."""
    folder = os.path.dirname(__file__)  # noqa: PTH120
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    own = sys.modules.pop(__name__)
    try:
        __import__(__name__)
    except ImportError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = own


if __name__ == "sitecustomize":
    if os.environ.get(_ASKED):
        sys.meta_path.insert(0, _BeforePyTorch())
    _run_the_next()
