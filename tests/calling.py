"""Runs a function of a test file as a program.

The command line has the module's name, the function's name, and a JSON list of its arguments.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Calls the function itself, without pytest's decorators."""
    module, name, arguments = sys.argv[1:]
    sys.argv = [module]
    sys.path.insert(0, str(ROOT))
    inspect.unwrap(getattr(importlib.import_module(module), name))(*json.loads(arguments))


if __name__ == "__main__":
    main()
