"""The program that the GitHub Action runs: `python -m plimsoll.integrations.pull_request`.

The exit status is 0 for success. It is 2 for bad input, or if a script fails only after the change.
It is 4 if a script no longer fits, or grows by more than is allowed. A crash of Python has exit
status 1.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from plimsoll.base.errors import InputError
from plimsoll.base.files import NewFile
from plimsoll.base.standard_streams import reserve_closed_descriptors
from plimsoll.integrations.peak_change import find_change, markdown
from plimsoll.prediction.fitting.headroom import Headroom

_FAILS = 2
_WORSE = 4


def main() -> None:
    """Predicts scripts in two folders and writes a Markdown comment on the difference."""
    reserve_closed_descriptors()
    parser = argparse.ArgumentParser(
        prog="python -m plimsoll.integrations.pull_request",
        description="What a change does to the predicted peak of GPU memory, as Markdown.",
    )
    parser.add_argument("--before", type=Path, required=True, help="the program before the change")
    parser.add_argument("--after", type=Path, required=True, help="the program after it")
    parser.add_argument("--scripts", required=True, help="scripts with their arguments, one a line")
    parser.add_argument("--gpu", default="H100", help="the card")
    parser.add_argument(
        "--may-grow", default="", help="by how much, such as 5%% or 512MiB; else by anything"
    )
    parser.add_argument("--output", type=Path, required=True, help="the file to write")
    asked = parser.parse_args()
    try:
        sys.exit(_write(asked))
    except InputError as error:
        print(f"plimsoll: {error}", file=sys.stderr)
        sys.exit(2)


def _write(asked: argparse.Namespace) -> int:
    may_grow = Headroom.parse(asked.may_grow) if asked.may_grow else None
    commands = [line.strip() for line in asked.scripts.splitlines() if line.strip()]
    if not commands:
        raise InputError("no script is named; give one a line, with its arguments")
    for folder in (asked.before, asked.after):
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder")
    changes = [
        find_change(command, asked.before, asked.after, gpu=asked.gpu) for command in commands
    ]
    with NewFile(asked.output, force=True) as file:
        file.write(markdown(changes, asked.gpu).encode())
    if any(change.fails_now for change in changes):
        return _FAILS
    return _WORSE if any(change.is_worse(may_grow) for change in changes) else 0


if __name__ == "__main__":
    main()
