"""Predicts memory figures of vLLM that people posted, and compares them with the posts.

    python benchmarks/serving_public.py run POSTED.csv [NUMBER ...]   all rows, or these
    python benchmarks/serving_public.py table POSTED.csv              the table of results

POSTED.csv has a row for each post. serving_public.toml lists one or more tries for each row, or
says why there are none. A try is one run of `plimsoll predict vllm serve`, and takes minutes. It
needs vLLM in the Python that runs this script, but no GPU and no network. The figures of each try
are added to benchmarks/results/serving_public.jsonl. A try does not run again if that file already
has its figures.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GIB = 1 << 30
HERE = Path(__file__).parent
PLAN = HERE / "serving_public.toml"
FOUND = HERE / "results" / "serving_public.jsonl"
SHORT_LOAD = ("--requests", "1", "--input-len", "16", "--output-len", "2")
"""One short request: the compared figures are settled before the first request."""
LIMIT_SECONDS = 1200
NEAR = 0.03
HEADING = (
    "Figures of serving engines that people posted, and what plimsoll predicts without a GPU "
    "(benchmarks/serving_public.py; sources as in the table of posts, sizes in GiB). A prediction "
    "runs vLLM 0.24.0 with PyTorch 2.11 under the settings of the row, whatever version was "
    "posted; a further prediction has one change, named before it."
)
SETTINGS = {
    "max_model_len": "",
    "max_num_batched_tokens": "",
    "gpu_memory_utilization": "0.9",
}
"""Columns of POSTED.csv that are options of vLLM, each with the value to use for an empty cell."""


@dataclass(frozen=True)
class Try:
    """One prediction for a row.

    Attributes:
        model: The name of a model in serving_public.toml.
        gpu: The card, as `--gpu` takes it.
        options: Options of `vllm serve`, as in a shell.
        because: The change from the row's settings, and the reason for it; "" in the first try.
        environment: Variables of the environment that the try sets.
        machine: Options of `plimsoll predict` besides the card.
    """

    model: str
    gpu: str
    options: str
    because: str = ""
    environment: str = ""
    machine: str = ""

    @property
    def key(self) -> str:
        """Returns the name under which this try's figures are stored."""
        parts = (self.environment, self.model, self.gpu, self.machine, self.options)
        return " ".join(part for part in parts if part)


def read_plan() -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """Returns what serving_public.toml has: a dict of models, and the rows sorted by number."""
    plan = tomllib.loads(PLAN.read_text())
    return plan["models"], sorted(plan["rows"], key=lambda row: row["number"])


def configuration(models: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """Returns the content of a model's config.json."""
    own = dict(models[name])
    base = own.pop("like", None)
    return {**(configuration(models, base) if base else {}), **own}


def predict(models: dict[str, dict[str, Any]], each: Try) -> dict[str, Any]:
    """Returns what plimsoll answers: the verdict and the figures of the engine.

    Raises:
        RuntimeError: If plimsoll gives no answer; the message has the last line of its output.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(configuration(models, each.model)))
        command = [sys.executable, "-m", "plimsoll", "predict", "--json", "--quiet"]
        command += ["--gpu", each.gpu, *each.machine.split(), "vllm", "serve", folder]
        own = dict(setting.split("=", 1) for setting in each.environment.split())
        done = subprocess.run(
            [*command, *shlex.split(each.options), *SHORT_LOAD],
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            env={**os.environ, **own},
        )
    try:
        answer = json.loads(done.stdout)
    except json.JSONDecodeError:
        lines = done.stderr.strip().splitlines() or ["nothing"]
        raise RuntimeError(f"{each.key}: {lines[-1]}") from None
    return {key: answer.get(key) for key in ("fits", "error", "serving")}


def tries_of(row: dict[str, Any], posted: dict[str, str]) -> list[Try]:
    """Returns the tries for a row. Each try begins with the settings of the web post `posted`."""
    settings = [
        f"--{name.replace('_', '-')} {posted[name] or default}"
        for name, default in SETTINGS.items()
        if posted[name] or default
    ]
    tries = (dict(each) for each in row.get("tries", []))
    return [
        Try(options=" ".join([*settings, each.pop("options", "")]).strip(), **each)
        for each in tries
    ]


def read_posted(path: Path) -> list[dict[str, str]]:
    """Returns the rows of POSTED.csv.

    Raises:
        ValueError: If POSTED.csv lacks a row of serving_public.toml, or names another source in
            the row with the same number.
    """
    with path.open(newline="") as file:
        posted = list(csv.DictReader(file))
    for row in read_plan()[1]:
        place = row["number"] - 1
        if place >= len(posted) or posted[place].get("source") != row["source"]:
            raise ValueError(f"{path}: row {row['number']} is not of {row['source']}")
    return posted


def found_before() -> dict[str, dict[str, Any]]:
    """Returns the stored predictions, by the key of the try."""
    if not FOUND.exists():
        return {}
    lines = (json.loads(line) for line in FOUND.read_text().splitlines())
    return {line["try"]: line for line in lines}


def run(posted: list[dict[str, str]], numbers: list[int]) -> int:
    """Predicts the tries of the rows in `numbers`, or of all rows if `numbers` is empty.

    Skips the tries whose figures are already stored.

    Returns:
        1 if a prediction failed, else 0.
    """
    models, plan = read_plan()
    missing = 0
    rows = {row["number"]: row for row in plan}
    for number in numbers or rows:
        row = rows[number]
        for each in tries_of(row, posted[row["number"] - 1]):
            if each.key in found_before():
                continue
            try:
                answer = predict(models, each)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"row {row['number']}: {error}", file=sys.stderr, flush=True)
                missing = 1
                continue
            known = {**found_before(), each.key: {"try": each.key, **answer}}
            FOUND.write_text("".join(json.dumps(line) + "\n" for line in known.values()))
            print(f"row {row['number']}: {each.key}: {answer['serving']}", flush=True)
    return missing


def number(text: str) -> float | None:
    """Returns the number at the start of a cell; None if there is none."""
    found = re.match(r"-?[\d.]+", text)
    return float(found[0]) if found else None


def compared(posted: dict[str, str], serving: dict[str, Any]) -> list[tuple[str, float, float]]:
    """Returns the name, the posted value and the predicted value of each figure that has both.

    `kv_tokens` comes after `kv_GiB`, because `is_near` uses the last cache size in the list.
    """
    tokens = serving["kv_tokens"] or serving["fitting_len"]
    predicted = {
        "weights_GiB": serving["weights_bytes"],
        "activation_GiB": serving["activation_bytes"],
        "non_torch_GiB": serving["outside_bytes"],
        "graph_GiB": serving["graph_bytes"],
        "kv_GiB": serving["kv_cache_bytes"],
    }
    pairs = [(name, number(posted[name]), size / GIB) for name, size in predicted.items() if size]
    pairs.append(("kv_tokens", number(posted["kv_tokens"]), tokens))
    if "estimate" in posted["graph_GiB"]:  # vLLM's own estimate, made before it captures a graph
        pairs = [pair for pair in pairs if pair[0] != "graph_GiB"]
    return [(name, seen, ours) for name, seen, ours in pairs if seen is not None and ours]


def is_near(figures: list[tuple[str, float, float]]) -> list[bool]:
    """Returns a list with one value: whether the predicted cache size is near the posted one.

    The list is empty if no cache size was posted.
    """
    caches = [(seen, ours) for name, seen, ours in figures if name.startswith("kv")]
    return [abs(ours / seen - 1) <= NEAR for seen, ours in caches[-1:]]


def table(posted: list[dict[str, str]]) -> Iterator[str]:
    """Yields the lines of the table."""
    _, plan = read_plan()
    found = found_before()
    ends: Counter[str] = Counter()
    body: list[str] = []
    for row in plan:
        lines, end = row_lines(row, posted[row["number"] - 1], found)
        ends[end] += 1
        body += ["", *lines, f"    {end}"]
    counts = ", ".join(f"{count} {end}" for end, count in ends.most_common())
    yield from textwrap.wrap(f"{HEADING} {len(plan)} rows: {counts}.", 100)
    yield from body


def row_lines(
    row: dict[str, Any], post: dict[str, str], found: dict[str, dict[str, Any]]
) -> tuple[list[str], str]:
    """Returns the table's lines for a row, and the outcome, such as "not tried"."""
    about = (post["engine"], post["card"] or "no card named", post["note"])
    lines = [
        f"{row['number']:2}  {post['source']}: {post['model'] or 'no model named'}",
        *wrapped("; ".join(part for part in about if part)),
    ]
    if "skip" in row:
        return [*lines, *wrapped(row["skip"])], "not tried"
    near: list[bool] = []
    for each in tries_of(row, post):
        serving = found[each.key]["serving"]
        what = f"{each.because}: " if each.because else ""
        figures = compared(post, serving)
        lines += wrapped(f"{what}{serving['engine']}, {each.key}")
        lines += [figure_line(*figure) for figure in figures]
        if serving["failed_in"] is not None:
            lines.append(f"      out of memory: {serving['failed_in']}")
        elif serving["refusal"] is not None:
            lines.append("      refuses to start")
        near += is_near(figures)
    if not near and post["oom"].startswith("refused") and serving["refusal"] is not None:
        return lines, "refuses to start, as posted"
    return lines, verdict(near)


def figure_line(name: str, seen: float, ours: float) -> str:
    """Returns a line of the table with a posted and a predicted figure."""
    digits = 0 if name == "kv_tokens" else 2
    return (
        f"      {name:15} posted {seen:12,.{digits}f}   predicted {ours:12,.{digits}f}"
        f"   {ours / seen - 1:+8.1%}"
    )


def verdict(near: list[bool]) -> str:
    """Returns the verdict on all tries for one row.

    For each try that can be compared, `near` says whether the try predicts a cache size near the
    posted one.
    """
    if not near:
        return "no cache to compare"
    if near[0]:
        return "within 3 %"
    return "explained by the change" if near[-1] else "not explained"


def wrapped(text: str) -> list[str]:
    """Returns the text as indented lines."""
    return textwrap.wrap(text, 100, initial_indent="    ", subsequent_indent="    ")


def main() -> int:
    """Runs the command line, and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("posted", type=Path, metavar="POSTED.csv", help="what people posted")
    parser.add_argument("numbers", nargs="*", type=int, metavar="NUMBER", help="rows, from 1")
    asked = parser.parse_args()
    try:
        posted = read_posted(asked.posted)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    known = {row["number"] for row in read_plan()[1]}
    if unknown := [each for each in asked.numbers if each not in known]:
        parser.error(f"there is no row {unknown[0]}")
    if asked.what == "run":
        return run(posted, asked.numbers)
    found = found_before()
    tries = (each for row in read_plan()[1] for each in tries_of(row, posted[row["number"] - 1]))
    if missing := [each.key for each in tries if each.key not in found]:
        parser.error(f"not run yet: {missing[0]}")
    print("\n".join(table(posted)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
