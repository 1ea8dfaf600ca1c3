"""Whether what `plimsoll fit` says fits does fit, and takes the time that it says, on a GPU.

`plan` searches here, without a GPU, and writes each changed copy that was tried; `measure` runs the
copies on the machine with the GPU, those of the plans under a hard limit; `table` compares.

    python benchmarks/fit.py plan build/fit [NAME…]
    python benchmarks/fit.py measure build/fit build/fit.json [NAME…]
    python benchmarks/fit.py table build/fit.json
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import runpy
import statistics
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plimsoll.fitting.attempts import Attempt
    from plimsoll.fitting.plan_search import Search

ROOT = Path(__file__).parents[1]
OWN = ROOT / "benchmarks" / "fit"
WORKLOADS = Path(os.environ.get("WORKLOADS", ROOT.parent / "shared" / "workloads"))
SCRIPTS = {
    **{path.stem: path for path in sorted(OWN.glob("*.py"))},
    **{path.stem: path for path in sorted(WORKLOADS.glob("*.py"))},
}
SHARES = (0.8, 0.6, 0.45)  # of what a script takes as it is
FLOORS = ("bert_varlen_amp", "gpt2_adamw", "vision")  # of these, the least that they can take, too
FLOOR = 0.1
GPU = "H200"
PASSES = int(os.environ.get("PASSES", "2"))


class Quiet:
    """Hears of each trial."""

    def begins(self, names: Sequence[str]) -> None:
        """Says nothing."""

    def ended(self, attempt: Attempt) -> None:
        """Says nothing."""


def plan(folder: Path, names: Sequence[str]) -> None:
    """Search, and write the copies; as many scripts at a time as there are four cores for each."""
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 4)) as pool:
        for each in [pool.submit(_plan_one, folder, name) for name in names or SCRIPTS]:
            each.result()


def _plan_one(folder: Path, name: str) -> None:
    base = _base_bytes(SCRIPTS[name])
    for share in [*SHARES, *([FLOOR] if name in FLOORS else [])]:
        if (folder / f"{name}-{round(100 * share)}.json").exists():
            continue
        within = int(base * share) >> 20 << 20
        search, context, seconds = _search(SCRIPTS[name], within)
        runs = list(_copies(search, folder, f"{name}-{round(100 * share)}"))
        described = {
            "script": name, "within": within, "context": context, "seconds": seconds,
            "fits": search.best is not None, "runs": runs,
        }  # fmt: skip
        (folder / f"{name}-{round(100 * share)}.json").write_text(json.dumps(described))
        best = next((run["changes"] for run in runs if run["is_best"]), None)
        print(f"{name} within {within >> 20} MiB, {len(runs)} trials in {seconds:.0f} s: {best}")


def _base_bytes(script: Path) -> int:
    from plimsoll.prediction import predict

    return predict(script, gpu=GPU).device_used_bytes


def _search(script: Path, within: int) -> tuple[Search, int, float]:
    from plimsoll.fitting.attempts import Attempts
    from plimsoll.fitting.plan_search import Search
    from plimsoll.fitting.script_text import ScriptText
    from plimsoll.gpus import gpu_profile
    from plimsoll.prediction.options import Options

    context = gpu_profile(GPU).context_bytes
    room = within - context
    request = Options(GPU, host_memory="256GiB", dedicated=room).request(script)
    text = ScriptText.of(script.read_text())
    search = Search(Attempts(request, script, text, room), room, Quiet())
    began = time.perf_counter()
    search.run()
    return search, context, time.perf_counter() - began


def _copies(search: Search, folder: Path, name: str) -> Iterator[dict[str, Any]]:
    for number, attempt in enumerate(search.known):
        if attempt.prediction is None:
            continue
        file = folder / f"{name}-{number}.py"
        file.write_text(str(search._attempts.text(attempt.changes)))
        is_best = search.best is not None and search.best.attempt is attempt
        use = search.best.use if search.best and is_best else attempt.allocators()[0]
        yield {
            "file": file.name,
            "changes": [change.name for change in attempt.changes],
            "keeps_results": all(change.keeps_results for change in attempt.changes),
            "is_best": is_best,
            "least": min(attempt.allocators(), key=lambda use: use.peak_reserved_bytes).__dict__,
            "use": asdict(use),
            "step_seconds": attempt.step_seconds,
            "allocated": attempt.allocated_bytes(),
        }


def measure(folder: Path, out: Path, names: Sequence[str]) -> None:
    """Run the copies, each in a process of its own that has imported all before."""
    import torch
    import transformers  # noqa: F401

    import plimsoll  # noqa: F401

    plans = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    plans = [each for each in plans if not names or each["script"] in names]
    seen: dict[str, dict[str, Any]] = {}
    for turn in range(PASSES):
        for each in plans:
            for run in each["runs"]:
                limit = each["within"] - each["context"] if run["is_best"] else None
                text = (folder / run["file"]).read_text()
                key = f"{run['use']['allocator']} {run['use']['conf']} {limit} {text}"
                if turn and len(seen[key]["steps"]) == 0:
                    continue
                if key not in seen or turn >= seen[key]["turns"]:
                    found = _in_process(torch, folder / run["file"], run["use"], limit)
                    before = seen.setdefault(key, {**found, "turns": 0, "steps": []})
                    before["turns"] += 1
                    before["steps"].append(found["step_seconds"])
                run["measured"] = seen[key]
                if not turn:
                    print(each["script"], run["file"], seen[key]["outcome"], flush=True)
        out.write_text(json.dumps({"gpu": torch_name(), "plans": plans}, indent=1))
    table(out)


def torch_name() -> str:
    """The card and PyTorch, found out in a process of its own."""
    import subprocess

    code = "import torch; print(torch.cuda.get_device_name(), torch.__version__)"
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()


def _in_process(torch: Any, file: Path, use: dict[str, str], limit: int | None) -> dict[str, Any]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        found = _run(torch, file, use, limit)
        with os.fdopen(writer, "w") as answer:
            answer.write(json.dumps(found))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"outcome": "died", "step_seconds": None}


def _run(torch: Any, file: Path, use: dict[str, str], limit: int | None) -> dict[str, Any]:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    import plimsoll

    if use["allocator"] == "elastic":
        plimsoll.install()
    elif use["conf"]:
        torch.cuda.memory._set_allocator_settings(use["conf"])
    if limit is not None:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(limit / total)
    ends: list[Any] = []

    def end(*_: Any) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        ends.append(event)

    register_optimizer_step_post_hook(end)
    printed = io.StringIO()
    outcome = "finished"
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_path(str(file), run_name="__main__")
        torch.cuda.synchronize()
    except torch.OutOfMemoryError as error:
        outcome = f"out of memory: {str(error)[:300]}"
    except Exception:
        outcome = f"failed: {traceback.format_exc()[-600:]}"
    times = [a.elapsed_time(b) * 1e-3 for a, b in pairwise(ends[1:])]
    stats = torch.cuda.memory_stats()
    return {
        "outcome": outcome,
        "step_seconds": statistics.median(times) if times and outcome == "finished" else None,
        "allocated": stats.get("allocated_bytes.all.peak"),
        "reserved": stats.get("reserved_bytes.all.peak"),
        "retries": stats.get("num_alloc_retries"),
        "losses": [float(each) for each in re.findall(r"loss (\S+)", printed.getvalue())],
    }


def table(path: Path) -> None:
    """Print what was found."""
    found = json.loads(path.read_text())
    print(found["gpu"])
    held, pairs, right = 0, 0, 0
    for plan in found["plans"]:
        best = next((run for run in plan["runs"] if run["is_best"]), None)
        if best is None:
            print(f"{plan['script']} within {plan['within'] >> 20} MiB: no plan")
            continue
        outcome = best["measured"]["outcome"]
        held += outcome == "finished"
        print(
            f"{plan['script']} within {plan['within'] >> 20} MiB, {len(plan['runs'])} trials in "
            f"{plan['seconds']:.0f} s: {outcome}; {' + '.join(best['changes']) or 'as it is'}"
        )
        for run in plan["runs"]:
            seconds = run["measured"]["step_seconds"]
            if seconds and run["step_seconds"]:
                print(
                    f"    {1e3 * run['step_seconds']:8.1f} ms predicted {1e3 * seconds:8.1f} ms, "
                    f"allocated {run['measured']['allocated'] / max(1, run['allocated']):.4f}  "
                    f"{' + '.join(run['changes']) or 'as it is'}"
                )
            elif run["measured"]["outcome"] != "finished":
                print(f"    {run['measured']['outcome']}: {' + '.join(run['changes'])}")
        for one, other in combinations(plan["runs"], 2):
            times = [statistics.median(_steps(run)) for run in (one, other) if _steps(run)]
            said = [run["step_seconds"] for run in (one, other)]
            if len(times) < 2 or None in said or max(times) <= 1.05 * min(times):
                continue
            pairs += 1
            right += (times[0] < times[1]) == (said[0] < said[1])
    print(f"plans that finish under their limit: {held} of {len(found['plans'])}")
    print(f"pairs of changes in the right order: {right} of {pairs} ({right / max(1, pairs):.1%})")


def _steps(run: dict[str, Any]) -> list[float]:
    return [each for each in run["measured"].get("steps", []) if each]


if __name__ == "__main__":
    verb, place, *rest = sys.argv[1:]
    if verb == "plan":
        plan(Path(place), rest)
    elif verb == "measure":
        measure(Path(place), Path(rest[0]), rest[1:])
    else:
        table(Path(place))
