"""Times `plimsoll sweep`, which predicts many combinations, and checks its rows.

    python benchmarks/sweep.py ../shared/workloads

The sweep combines three scripts, six cards and four allocator configurations, so it makes 72
predictions. It runs one process per core. Afterwards one row in N is checked (`--every N`): a
separate prediction must give exactly the same figures.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

from report import heading, save

import plimsoll
from plimsoll.prediction.sweeps.parts import Row

SCRIPTS = ("gpt2_adamw.py", "resnet_amp.py", "llama_checkpointed.py")
GPUS = ("RTX 4060 Laptop", "RTX 4090", "L4", "A100-40GB", "H100", "H200")
CONFS = (
    "", "expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:8",
)  # fmt: skip


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description="Time a sweep.")
    parser.add_argument("folder", type=Path, help="With the scripts.")
    parser.add_argument("--every", type=int, default=9, help="Check one row of so many.")
    given = parser.parse_args()
    scripts = [str(given.folder.resolve() / name) for name in SCRIPTS]
    plan = {"scripts": scripts, "gpus": GPUS, "confs": CONFS}
    load = os.getloadavg()[0]
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        found = plimsoll.sweep(
            plan,
            results=Path(folder, "sweep.parquet"),
            progress=lambda row, done, _: print(done, row.case.title, file=sys.stderr),
        )
        seconds = time.monotonic() - began
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        again = time.monotonic()
        plimsoll.sweep(plan, results=Path(folder, "sweep.parquet"))
        seconds_again = time.monotonic() - again
    checked = found.rows[:: given.every]
    differ = [row.case.title for row in checked if not is_alone_the_same(row)]
    failed = [row.case.title for row in found.rows if row.error is not None]
    lines = [
        heading(),
        f"{found.where}; load before: {load:.1f}",
        f"{len(found.rows)} predictions      {seconds:8.1f} s",
        f"processor time      {used.ru_utime + used.ru_stime:8.1f} s, over {cores} cores "
        f"{(used.ru_utime + used.ru_stime) / cores:.1f} s",
        f"each, on a core     {seconds * cores / len(found.rows):8.1f} s",
        f"the same once more  {seconds_again:8.1f} s, all from the table",
        f"failed              {len(failed):6}    {', '.join(failed)}",
        f"predicted alone     {len(checked):6}    differ: {len(differ)} {', '.join(differ)}",
        "",
        str(found),
    ]
    text = "\n".join(line.rstrip() for line in lines).replace(f"{given.folder.resolve()}/", "")
    save("sweep", text + "\n")
    print(text)
    return 1 if differ or failed else 0


def is_alone_the_same(row: Row) -> bool:
    """Returns whether a separate prediction equals the row. Time and host memory may differ."""
    case = row.case
    alone = plimsoll.predict(case.program, gpu=case.gpu or "", conf=case.conf or "")
    values = json.loads(json.dumps({**alone.to_dict(), "timeline": None}))
    kept = json.loads(json.dumps(row.result))
    of_host = dict.fromkeys(("seconds", "host_peak_bytes", "host_peak_range_bytes"))
    return {**values, **of_host} == {**kept, **of_host}


if __name__ == "__main__":
    sys.exit(main())
