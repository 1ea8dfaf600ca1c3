"""The command line: one module a verb, each a thin face of a Python function of the same name."""

from plimsoll.cli.app import main

__all__ = ["main"]
