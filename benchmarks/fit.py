"""Checks on a GPU the memory and the step time that `plimsoll fit` predicts for its plans.

A plan is the set of changes that `plimsoll fit` proposes so that a script fits a memory budget.
`plan` searches without a GPU. It writes a copy of the script for each set of changes that it tried.
`measure` times all copies on a machine with a GPU. It also runs each plan's copy under a hard
memory limit. `table` compares predictions and measurements.

    python benchmarks/fit.py plan build/fit [NAME…]
    python benchmarks/fit.py measure build/fit build/fit.json [NAME…]
    python benchmarks/fit.py table build/fit.json
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import io
import json
import multiprocessing
import os
import runpy
import statistics
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import combinations, pairwise, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plimsoll.prediction.fitting.attempts import Attempt
    from plimsoll.prediction.fitting.plan_search import Search

ROOT = Path(__file__).parents[1]
OWN = ROOT / "benchmarks" / "fit"
WORKLOADS = Path(os.environ.get("WORKLOADS", ROOT.parent / "shared" / "workloads"))
SCRIPTS = {
    **{path.stem: path for path in sorted(OWN.glob("*.py"))},
    **{path.stem: path for path in sorted(WORKLOADS.glob("*.py"))},
}
SHARES = (0.8, 0.6, 0.45)  # memory budgets, as parts of what the unchanged script takes
# For these scripts `plan` also tries the budget `FLOOR`, a tenth of the unchanged script's need.
# If no copy of such a script fits a budget, `measure` runs the copy with the lowest predicted need
# under two limits: 2 % below and 2 % above that need.
FLOORS = ("bert_varlen_amp", "gpt2_adamw", "vision")
FLOOR = 0.1
AT_FLOOR = ("bert_varlen_amp-60", "gpt2_adamw-45", "lora-60", "mixtral_moe-80")
"""Plans that `measure` runs under their budget and under two other limits.

These limits are 2 % below and 2 % above the plan's predicted peak of reserved memory. `measure`
runs all other plans only under their budget. The number in a plan's name is its budget, in percent
of what the unchanged script needs. Plans that copy tensors to the host are not in the list, because
the result of such a plan depends on the host's speed.
"""
GPU = "H200"
PASSES = int(os.environ.get("PASSES", "2"))
SECONDS = float(os.environ.get("SECONDS", "3600"))  # no timed run starts after this many seconds
AT_A_TIME = 8
ROOM = 120 << 30  # bytes; the memory limits of parallel runs add up to less than this
STEPS = 9  # steps of a timed copy


class EnoughError(Exception):
    """Ends a timed copy of a script after its steps."""


class Quiet:
    """A progress display that shows nothing."""

    def begins(self, names: Sequence[str]) -> None:
        """Ignores the start of a trial."""

    def ended(self, attempt: Attempt) -> None:
        """Ignores the end of a trial."""


def plan(folder: Path, names: Sequence[str]) -> None:
    """Searches for plans, and writes the copies. One search runs for every four cores."""
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
    from plimsoll.prediction.predict import predict

    return predict(script, gpu=GPU).device_used_bytes


def _search(script: Path, within: int) -> tuple[Search, int, float]:
    from plimsoll.engine.gpus.profiles import gpu_profile
    from plimsoll.prediction.fitting.attempts import Attempts
    from plimsoll.prediction.fitting.plan_search import Search
    from plimsoll.prediction.fitting.script_text import ScriptText
    from plimsoll.prediction.options import Options

    context = gpu_profile(GPU).context_bytes
    room = within - context
    request = Options(gpu=GPU, host_memory="256GiB", dedicated=room).request(script)
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
            "notes": [change.note for change in attempt.changes if change.note],
            "is_best": is_best,
            "least": asdict(attempt.least_use()),
            "use": asdict(use),
            "step_seconds": attempt.step_seconds,
            "allocated": attempt.allocated_bytes(),
        }


def measure(folder: Path, out: Path, names: Sequence[str]) -> None:
    """Runs the copies in forked processes, so that no process has to import PyTorch again.

    First it runs copies under memory limits, to see whether they fit. These runs are parallel, each
    in a process of its own. Then it times copies, one after another, until `SECONDS` are over. All
    timed copies with the same allocator and allocator settings share one process.
    """
    import torch  # noqa: F401
    import transformers  # noqa: F401

    import plimsoll  # noqa: F401

    began = time.monotonic()
    plans = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    plans = [each for each in plans if not names or each["script"] in names]
    found: dict[str, Any] = {"gpu": torch_name(), "plans": plans, "held": {}, "timed": {}}
    _run_beside(folder, list(_limited(plans)), found["held"])
    out.write_text(json.dumps(found, indent=1))
    timed = [run for each in plans for run in each["runs"]]
    for run in timed:
        run["sha"] = hashlib.sha256((folder / run["file"]).read_bytes()).hexdigest()
    timed = _in_turns(plans)
    pools: dict[str, Any] = {}
    for turn in range(PASSES):
        done: set[tuple[str, ...]] = set()
        for run in timed:
            file, use = run["file"], run["use"]
            same = (run["sha"], use["allocator"], use["conf"])
            if same in done or time.monotonic() - began > SECONDS:
                continue
            done.add(same)
            name = f"{use['allocator']} {use['conf']}"
            if name not in pools:
                pools[name] = multiprocessing.get_context("fork").Pool(1)
            outcome = pools[name].apply(_run, (folder / file, use, None))
            found["timed"].setdefault(file, []).append(outcome)
            if not turn:
                print(file, outcome["outcome"][:200], flush=True)
        out.write_text(json.dumps(found, indent=1))
    table(out)


def _in_turns(plans: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the copies in the order in which they are timed.

    The first group has the copies that `plimsoll fit` proposes, and all copies with at most one
    change. The second group has the other copies. Within a group, the scripts take turns.
    """
    first: dict[str, list[dict[str, Any]]] = {}
    rest: dict[str, list[dict[str, Any]]] = {}
    for plan in plans:
        for run in plan["runs"]:
            group = first if run["is_best"] or len(run["changes"]) <= 1 else rest
            group.setdefault(plan["script"], []).append(run)
    ordered = [run for group in (first, rest) for runs in zip_longest(*group.values())
               for run in runs]  # fmt: skip
    return [run for run in ordered if run is not None]


def _limited(plans: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str, dict[str, Any], int]]:
    """Yields the runs that `measure` puts under a memory limit.

    Yields:
        The run's name, the script's file, the predicted `AllocatorUse` as a dictionary, and the
        limit in bytes.
    """
    for plan in plans:
        floor = min(plan["runs"], key=lambda run: least_reserved(run["least"]))
        for run in plan["runs"]:
            room = plan["within"] - plan["context"]
            if run["is_best"]:
                yield f"{run['file']} fits", run["file"], run["use"], room
                if run["file"].rpartition("-")[0] in AT_FLOOR:
                    for part in (0.98, 1.02):
                        size = int(part * run["use"]["peak_reserved_bytes"])
                        yield f"{run['file']} floor {part}", run["file"], run["use"], size
            elif not plan["fits"] and run is floor and plan["script"] in FLOORS:
                use = run["least"]
                for part in (0.98, 1.02):
                    size = int(part * least_reserved(use))
                    yield f"{run['file']} floor {part}", run["file"], use, size


def least_reserved(use: dict[str, Any]) -> int:
    """Returns the fewest bytes of memory in which an allocator can serve all requests of a script.

    Args:
        use: The fields of the `AllocatorUse` that was predicted for the script.
    """
    from plimsoll.prediction.survey import AllocatorUse

    return AllocatorUse(**use).least_reserved_bytes


def _run_beside(
    folder: Path,
    runs: list[tuple[str, str, dict[str, Any], int]],
    found: dict[str, Any],
) -> None:
    waiting, taken = list(runs), 0
    running: dict[str, tuple[Child, int]] = {}
    while waiting or running:
        if waiting and len(running) < AT_A_TIME and (not running or taken + waiting[0][3] < ROOM):
            name, file, use, limit = waiting.pop(0)
            running[name] = (_in_process(folder / file, use, limit), limit)
            taken += limit
            continue
        name = next(iter(running))
        child, limit = running.pop(name)
        taken -= limit
        found[name] = {"limit": limit, **child.result()}
        print(f"{name}: {found[name]['outcome'][:200]}", flush=True)


def torch_name() -> str:
    """Returns the card's name and PyTorch's version.

    A separate process reads both, because this process must not use CUDA before it forks.
    """
    import subprocess

    code = "import torch; print(torch.cuda.get_device_name(), torch.__version__)"
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()


class Child:
    """A process that sends one result, as JSON."""

    def __init__(self, process: int, reader: int) -> None:
        self._process, self._reader = process, reader

    def result(self) -> dict[str, Any]:
        """Returns the process's result, or an entry that says it died."""
        with os.fdopen(self._reader) as answer:
            text = answer.read()
        os.waitpid(self._process, 0)
        return json.loads(text) if text else {"outcome": "died", "step_seconds": None}


def _in_process(file: Path, use: dict[str, str], limit: int | None) -> Child:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        found = _run(file, use, limit)
        with os.fdopen(writer, "w") as answer:
            answer.write(json.dumps(found))
        os._exit(0)
    os.close(writer)
    return Child(child, reader)


def _run(file: Path, use: dict[str, str], limit: int | None) -> dict[str, Any]:
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    import plimsoll

    sys.argv = [str(file)]
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    ends: list[Any] = []
    parts: list[Any] = []
    losses: list[Any] = []
    backward = torch.Tensor.backward
    cross_entropy = torch.nn.functional.cross_entropy  # saved, since some copies replace it

    def noted(loss: Any, *arguments: Any, **named: Any) -> None:
        parts.append(loss.detach())
        backward(loss, *arguments, **named)

    def end(*_: Any) -> None:
        losses.append(sum(parts))
        parts.clear()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        ends.append(event)
        if limit is None and len(ends) > STEPS:
            raise EnoughError

    hook = register_optimizer_step_post_hook(end)
    torch.Tensor.backward = noted
    outcome = "finished"
    try:
        if use["allocator"] == "elastic":
            plimsoll.install()
        elif use["conf"]:
            torch.cuda.memory._set_allocator_settings(use["conf"])
        if limit is not None:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(limit / total)
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(str(file), run_name="__main__")
        torch.cuda.synchronize()
    except EnoughError:
        torch.cuda.synchronize()
    except torch.OutOfMemoryError as error:
        outcome = f"out of memory: {str(error)[:300]}"
    except (Exception, SystemExit):
        outcome = f"failed: {traceback.format_exc()[-600:]}"
    hook.remove()
    torch.Tensor.backward = backward
    torch.nn.functional.cross_entropy = cross_entropy
    times = [a.elapsed_time(b) * 1e-3 for a, b in pairwise(ends[1:])]
    stats = torch.cuda.memory_stats()
    return {
        "outcome": outcome,
        "step_seconds": statistics.median(times) if times and outcome == "finished" else None,
        "allocated": stats.get("allocated_bytes.all.peak"),
        "reserved": stats.get("reserved_bytes.all.peak"),
        "retries": stats.get("num_alloc_retries"),
        "losses": [float(each) for each in losses],
    }


def table(path: Path) -> None:
    """Prints the results."""
    found = json.loads(path.read_text())
    print(found["gpu"])
    fits = {name: each["outcome"] for name, each in found["held"].items() if "fits" in name}
    right, pairs = 0, 0
    counted: set[tuple[str, str]] = set()
    for plan in found["plans"]:
        best = next((run for run in plan["runs"] if run["is_best"]), None)
        outcome = "no plan" if best is None else fits.get(f"{best['file']} fits", "not run")
        names = "" if best is None else "; " + (" + ".join(best["changes"]) or "as it is")
        print(
            f"{plan['script']} within {plan['within'] >> 20} MiB, {len(plan['runs'])} trials in "
            f"{plan['seconds']:.0f} s: {outcome}{names}"
        )
        timed = [(run, _seconds(found, run)) for run in plan["runs"]]
        base = next((run for run in plan["runs"] if not run["changes"]), None)
        for run, seconds in timed:
            _row(found, run, seconds, base)
        known = [
            (run["sha"], run["step_seconds"], seconds)
            for run, seconds in timed
            if seconds and run["step_seconds"]
        ]
        for (one, said, took), (other, other_said, other_took) in combinations(known, 2):
            if (one, other) in counted:  # a plan for another budget had these copies too
                continue
            counted.update([(one, other), (other, one)])
            if max(took, other_took) > 1.05 * min(took, other_took):
                pairs += 1
                right += (took < other_took) == (said < other_said)
    for name, each in found["held"].items():
        if "floor" in name:
            print(f"{name}, limit {each['limit'] / 2**20:.0f} MiB: {each['outcome'][:60]}")
    held = sum(outcome == "finished" for outcome in fits.values())
    print(f"plans that finish under their limit: {held} of {len(fits)}")
    print(f"pairs of changes in the right order: {right} of {pairs} ({right / max(1, pairs):.1%})")


def _timed(found: dict[str, Any], run: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the measurements of a copy; empty if there are none.

    If several copies have the same text, allocator and allocator settings, `measure` times only one
    of them. So the measurements may be stored under another copy's file name.
    """
    for plan in found["plans"]:
        for other in plan["runs"]:
            same = other["sha"] == run["sha"] and other["use"]["conf"] == run["use"]["conf"]
            if same and other["use"]["allocator"] == run["use"]["allocator"]:
                measured: list[dict[str, Any]] = found["timed"].get(other["file"], [])
                if measured:
                    return measured
    return []


def _seconds(found: dict[str, Any], run: dict[str, Any]) -> float | None:
    steps = [each["step_seconds"] for each in _timed(found, run) if each["step_seconds"]]
    # the fastest pass, because other load on the machine only adds time
    return min(steps, default=None)


def _row(
    found: dict[str, Any],
    run: dict[str, Any],
    seconds: float | None,
    base: dict[str, Any] | None,
) -> None:
    name = " + ".join(run["changes"]) or "as it is"
    measured = _timed(found, run)
    failed = next((each for each in measured if each["outcome"] != "finished"), None)
    if failed is not None:
        print(f"    {failed['outcome'][-300:]}: {name}")
    elif seconds and run["step_seconds"]:
        differs = _apart(measured[0], _timed(found, base)[-1]) if base else None
        said = any("dropout" in note for note in run.get("notes", []))
        kept = " (dropout)" if said else "" if run["keeps_results"] else " (may)"
        losses = "" if differs is None else f", losses differ by {differs:.1e}{kept}"
        print(
            f"    {1e3 * run['step_seconds']:8.1f} ms predicted {1e3 * seconds:8.1f} ms, "
            f"allocated {measured[0]['allocated'] / max(1, run['allocated']):.4f}{losses}  {name}"
        )


def _apart(one: dict[str, Any], other: dict[str, Any]) -> float | None:
    """Returns the largest relative difference between two runs' losses."""
    pairs = list(zip(one["losses"], other["losses"], strict=False))
    return max((abs(a - b) / max(abs(b), 1e-9) for a, b in pairs), default=None)


if __name__ == "__main__":
    verb, place, *rest = sys.argv[1:]
    if verb == "plan":
        plan(Path(place), rest)
    elif verb == "measure":
        measure(Path(place), Path(rest[0]), rest[1:])
    else:
        table(Path(place))
