"""Runs all behaviours under all allocators and prints a table: python -m tests.gpu.behaviours"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tests.gpu.behaviours import load
from tests.gpu.behaviours.behaviour import Behaviour
from tests.gpu.behaviours.runner import ALLOCATORS, Results, complaint, run


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu.behaviours",
        description="Compare what programs observe under PyTorch's allocator and plimsoll's.",
        epilog="Exit status: 0 all as it must be, 1 something differs or fails, 2 bad input.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a behaviour or a group")
    parser.add_argument(
        "--allocator", action="append", choices=ALLOCATORS[1:], help="default: both"
    )
    parser.add_argument("--jobs", type=int, default=6, help="processes at a time (default 6)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all results as JSON")
    parser.add_argument("--list", action="store_true", help="name the behaviours and stop")
    return parser.parse_args()


def _verdict(behaviour: Behaviour, allocator: str, results: Results) -> str:
    found = results[behaviour.name]
    if complaint(behaviour, allocator, found):
        return "FAILS" if any("failed" in found[a] for a in ("torch", allocator)) else "DIFFERS"
    return "skipped" if "skipped" in found[allocator] else "equal"


def main() -> int:
    """Runs the command line. Returns the exit status."""
    options = _arguments()
    behaviours = load()
    known = {b.name for b in behaviours} | {b.group for b in behaviours}
    if unknown := sorted(set(options.names) - known):
        print(f"no such behaviour: {', '.join(unknown)} (--list names them)", file=sys.stderr)
        return 2
    chosen = [b for b in behaviours if not options.names or {b.name, b.group} & {*options.names}]
    if options.list:
        print(*(behaviour.name for behaviour in chosen), sep="\n")
        return 0
    allocators: list[str] = options.allocator or list(ALLOCATORS[1:])
    started = time.monotonic()
    results = run(
        chosen,
        ["torch", *allocators],
        options.jobs,
        lambda line: print(f"{time.monotonic() - started:4.0f} s  {line}", file=sys.stderr),
    )
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=1) + "\n")

    verdicts = [[_verdict(b, allocator, results) for allocator in allocators] for b in chosen]
    print(f"{'behaviour':<70}" + "".join(f"{allocator:>10}" for allocator in allocators))
    for behaviour, row in zip(chosen, verdicts, strict=True):
        print(f"{behaviour.name:<70}" + "".join(f"{verdict:>10}" for verdict in row))
    for behaviour in chosen:
        found = results[behaviour.name]
        texts = {complaint(behaviour, allocator, found): allocator for allocator in allocators}
        for text, allocator in texts.items():
            if text:
                print(f"\n{behaviour.name}, {allocator}\n{text}")
    skipped = {
        f"{name}: {row['torch']['skipped']}"
        for name, row in results.items()
        if "skipped" in row["torch"]
    }
    if skipped:
        print("\nskipped\n" + "\n".join(sorted(skipped)))
    bad = sum(verdict in ("DIFFERS", "FAILS") for row in verdicts for verdict in row)
    print(
        f"\n{len(chosen)} behaviours, {bad} not as it must be, {time.monotonic() - started:.0f} s"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
