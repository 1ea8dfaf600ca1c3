"""Measures what the elastic allocator reserves for recordings, with and without a plan.

    python benchmarks/plans.py FOLDER [--scripts FOLDER]

A plan has an address for each large request of a program. FOLDER holds recordings
NAME.VARIANT.pickle.gz, several of each program under different settings. Each recording is replayed
without a plan, and with a plan from another recording of the same program. If the scripts' folder
has NAME.py, the recording is also replayed with the plan that `plimsoll predict --write-plan`
makes. The first figure is peak reserved memory divided by peak live bytes. A freed block that
another stream still uses counts as live. `placed` is the share of bytes that lie where the plan
says, among the requests above 1 MiB. The last figure is the predicted time of the driver calls on
an H100. Results go to benchmarks/results/plans.txt.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from report import RESULTS, heading, save

from plimsoll import replay
from plimsoll.engine.plans.making import plan_of
from plimsoll.engine.plans.plan_file import read_plan
from plimsoll.recordings.reading import read_recording

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.engine.plans.program_plan import Plan
    from plimsoll.engine.replays.parts import ReplayResult

WITHOUT_LIMIT = "1TiB"
ENDING = ".pickle.gz"


def program_of(recording: Path) -> str:
    """Returns the name of the program that was recorded."""
    return recording.name.split(".")[0]


def other_run(recording: Path, recordings: Sequence[Path]) -> Path | None:
    """Returns the program's largest recording except `recording`; None if there is no other."""
    others = [
        each
        for each in recordings
        if program_of(each) == program_of(recording) and each != recording
    ]
    return max(others, key=lambda each: each.stat().st_size, default=None)


def predicted(script: Path, folder: Path) -> Plan:
    """Returns the plan that a prediction of the script makes."""
    file = folder / f"{script.stem}.plan.json"
    command = [sys.executable, "-m", "plimsoll", "predict", str(script), "--write-plan", str(file)]
    done = subprocess.run([*command, "--quiet"], capture_output=True, check=False, text=True)
    if not file.exists():
        sys.exit(f"{script}: {done.stderr}")
    return read_plan(file)


def cells(result: ReplayResult | None, live: int) -> str:
    """Returns a replay's columns of the table."""
    if result is None:
        return f"{'-':>9} {'-':>7} {'-':>8}"
    placed = "-"
    if result.plan is not None and result.plan.requested_bytes:
        placed = f"{result.plan.placed_bytes / result.plan.requested_bytes:.1%}"
    driver = f"{1e3 * result.driver_seconds:.1f} ms"
    return f"{result.peak_reserved_bytes / live:>9.4f} {placed:>7} {driver:>8}"


def summary(name: str, ratios: Sequence[float]) -> str:
    """Returns a line with the mean and the worst ratio."""
    return f"{name}: mean {sum(ratios) / len(ratios):.4f}, worst {max(ratios):.4f}"


def main() -> None:
    """Replays the recordings, and prints and saves the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scripts", type=Path, help="the programs' scripts, NAME.py")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the table is kept")
    arguments = parser.parse_args()
    recordings = sorted(arguments.folder.glob(f"*{ENDING}"))
    found: dict[str, list[float]] = {"without": [], "another run": [], "prediction": []}
    heads = "".join(f"{name:^27}" for name in ("without", "plan of another run", "of a prediction"))
    lines = [heading(), f"{'':28}{heads}"]
    print("\n".join(lines))
    plans: dict[Path, Plan] = {}
    with tempfile.TemporaryDirectory() as folder:
        for path in recordings:
            recording = read_recording(path)
            live = 0
            script = arguments.scripts and arguments.scripts / f"{program_of(path)}.py"
            sources = {"without": None, "another run": other_run(path, recordings)}
            sources["prediction"] = script if script and script.exists() else None
            line = f"{path.name.removesuffix(ENDING):28}"
            for name, source in sources.items():
                result = None
                if source is not None and source not in plans:
                    is_script = source.suffix == ".py"
                    plans[source] = (
                        predicted(source, Path(folder))
                        if is_script
                        else plan_of([read_recording(source)])
                    )
                if source is not None or name == "without":
                    plan = None if source is None else plans[source]
                    (result,) = replay(
                        recording, allocator="elastic", limit=WITHOUT_LIMIT, plan=plan
                    )
                    # The divisor of all three ratios: the peak of live bytes without a plan.
                    live = live or result.peak_active_bytes
                    found[name].append(result.peak_reserved_bytes / live)
                line += f" {cells(result, live)}"
            lines.append(line)
            print(line, flush=True)
    for name, ratios in found.items():
        if ratios:
            lines.append(summary(name, ratios))
            print(lines[-1])
    save("plans", "\n".join(lines) + "\n", arguments.results)


if __name__ == "__main__":
    main()
