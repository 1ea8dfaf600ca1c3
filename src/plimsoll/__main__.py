"""Runs the command line, for `python -m plimsoll`."""

from plimsoll.cli import main

main()
