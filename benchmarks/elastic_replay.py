"""Measures the elastic allocator's utilization on recorded programs.

    python benchmarks/elastic_replay.py [FOLDER]

FOLDER holds recordings NAME.default.pickle.gz with NAME.default.json beside them, and
NAME.expandable.json if the program was also recorded under expandable segments. The JSON files have
`max_memory_allocated`, `max_memory_reserved`, and `seconds`, the program's time. Utilization is the
peak of allocated over the peak of reserved memory. Driver time is the predicted time of the elastic
allocator's driver calls. The costs of these calls were measured on an H100. Results go to
benchmarks/results/elastic_replay.txt.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from report import RESULTS, heading, save

from plimsoll import replay

TRACES = Path(__file__).parents[2] / "shared" / "traces"


def account(path: Path) -> dict[str, Any]:
    """Returns the content of a recording's JSON file; empty if there is none."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def utilization(program: dict[str, Any]) -> str:
    """Returns peak allocated over peak reserved memory as text; a dash if unknown."""
    if not program:
        return "-"
    return f"{program['max_memory_allocated'] / program['max_memory_reserved']:.3f}"


def main() -> None:
    """Replays the recordings, and prints and saves the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=TRACES)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the table is kept")
    arguments = parser.parse_args()
    lines = [
        heading(),
        f"{'':22} {'utilization':^35} {'elastic, driver':>25}",
        f"{'program':22} {'PyTorch':>11} {'expandable':>11} {'elastic':>11} {'ms':>12} "
        f"{'of the run':>12}",
    ]
    print("\n".join(lines))
    for recording in sorted(arguments.folder.glob("*.default.pickle.gz")):
        name = recording.name.split(".")[0]
        program = account(recording.with_name(f"{name}.default.json"))
        expandable = account(recording.with_name(f"{name}.expandable.json"))
        (result,) = replay(recording, allocator="elastic")
        line = f"{name:22} {utilization(program):>11} {utilization(expandable):>11}"
        line += f" {result.utilization:11.3f} {1e3 * result.driver_seconds:12.1f}"
        share = f"{result.driver_seconds / program['seconds']:.2%}" if program else "-"
        lines.append(line + f" {share:>12}")
        print(lines[-1], flush=True)
    save("elastic_replay", "\n".join(lines) + "\n", arguments.results)


if __name__ == "__main__":
    main()
