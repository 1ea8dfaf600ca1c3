"""Tests the plan of `plimsoll sweep`: its cases, refused plans, and the best row of the table."""

from __future__ import annotations

import io
import random
import re
import shlex
import shutil
import time
import tomllib
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.base.errors import InputError
from plimsoll.base.units import GiB
from plimsoll.prediction.recipes.served import VLLM
from plimsoll.prediction.sweeps import results_file
from plimsoll.prediction.sweeps.case_bars import case_bars
from plimsoll.prediction.sweeps.parts import Case, Row
from plimsoll.prediction.sweeps.prices import read_prices
from plimsoll.prediction.sweeps.results import Sweep
from plimsoll.prediction.sweeps.results_file import ResultsFile
from plimsoll.prediction.sweeps.sweep import processes_of
from plimsoll.prediction.sweeps.sweep_plan import SweepPlan
from tests.fuzz import mutate_bytes, mutate_tree
from tests.waiting import wait_for

words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
lists = st.lists(words, min_size=1, max_size=3, unique=True)


@given(
    st.lists(st.sampled_from(["a.py", "b.py", "c.py"]), min_size=1, unique=True),
    lists,
    st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True),
    lists,
    lists,
    st.lists(st.sampled_from(["native", "elastic", "uncached"]), min_size=1, unique=True),
)
def test_a_plan_is_the_product_of_its_lists(
    scripts: list[str],
    arguments: list[str],
    sizes: list[int],
    gpus: list[str],
    confs: list[str],
    allocators: list[str],
) -> None:
    plan = {
        "scripts": scripts, "arguments": [shlex.quote(one) for one in arguments],
        "vary": {"--n": sizes}, "gpus": gpus, "confs": confs, "allocators": allocators,
    }  # fmt: skip
    wanted = {
        (
            script,
            (argument, "--n", str(size)),
            gpu,
            conf if allocator == "native" else "",
            allocator,
        )
        for script, argument, size, gpu, conf, allocator in product(
            scripts, arguments, sizes, gpus, confs, allocators
        )
    }
    cases = SweepPlan.parse(plan).cases()
    found = {(c.program, c.arguments, c.gpu, c.conf, c.allocator) for c in cases}
    assert found == wanted
    assert len(cases) == len(found)
    assert {case.kind for case in cases} == {"prediction"}


def test_an_empty_list_stands_for_what_a_single_run_does() -> None:
    cases = SweepPlan.parse({"scripts": ["a.py"], "recordings": "b.plim"}).cases()
    assert cases == [
        Case("prediction", "a.py", (), "H100", "", "native"),
        Case("replay", "b.plim", (), None, None, "native"),
    ]


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ({}, "'scripts' or 'recordings' must name what is swept over"),
        ({"script": ["a.py"]}, "'script' is no key of a plan; there are scripts, recordings"),
        ({"scripts": []}, "'scripts' must be a list of strings that is not empty, not []"),
        ({"scripts": ["a.py"], "gpus": [4090]}, "'gpus' must be a string, not 4090"),
        (
            {"scripts": ["a.py"], "gpus": {"a": 1}},
            "'gpus' must be a list of strings that is not empty",
        ),
        ({"scripts": ["a.py"], "goal": "best"}, "'goal' is one of least-memory, fits, most-"),
        ({"scripts": ["a.py"], "goal": 3}, "'goal' must be a string, not 3"),
        ({"scripts": ["a.py"], "allocators": ["fast"]}, "'allocators' are native, elastic"),
        ({"scripts": ["a.py"], "nnodes": 2}, "'nnodes' goes with 'nproc_per_node'"),
        ({"scripts": ["a.py"], "nproc_per_node": 0}, "must be a whole number from 1 on, not 0"),
        ({"scripts": ["a.py"], "nproc_per_node": "2"}, "must be a whole number from 1 on, not '2'"),
        ({"scripts": ["a.py"], "nproc_per_node": 8, "nnodes": 9}, "at most 64 ranks, not 72"),
        ({"recordings": ["a.plim"], "nproc_per_node": 2}, "is for scripts: recordings are replay"),
        (
            {"scripts": [str(VLLM.script)], "nproc_per_node": 2},
            "is for scripts: vllm serve starts its own processes",
        ),
        ({"scripts": ["a.py"], "arguments": ["'"]}, "'arguments' \"'\": No closing quotation"),
        ({"scripts": ["a.py"], "vary": ["--n"]}, "'vary' is a table of lists by argument"),
        ({"scripts": ["a.py"], "vary": {"n": [1]}}, "'vary' has arguments, such as --batch-size"),
        (
            {"scripts": ["a.py"], "vary": {"--n": [[1]]}},
            "'vary' --n is a list of numbers and texts",
        ),
        ({"scripts": ["a\0.py"]}, "'scripts' has a zero byte"),
        ({"scripts": ["a.py"], "vary": {"--n": list(range(100_001))}}, "100,000 are allowed"),
    ],
)
def test_a_bad_plan_is_refused_in_a_line(plan: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as refused:
        SweepPlan.parse(plan)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_paths_of_a_plan_begin_at_its_folder(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('scripts = ["a.py"]\nrecordings = ["/b.plim"]\nprices = "p.csv"\n')
    read = SweepPlan.read(plan)
    assert read.scripts == (f"{tmp_path}/a.py",)
    assert read.recordings == ("/b.plim",)
    assert read.prices == f"{tmp_path}/p.csv"


def test_the_plan_and_the_prices_of_the_page_are_read(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "which-card.md"
    part = page.read_text().partition("## A plan")[2].partition("\n## ")[0]
    files = re.findall(r'^```\w+ title="([\w.]+)"\n(.*?)^```', part, re.M | re.S)
    assert [name for name, _ in files] == ["plan.toml", "prices.csv"]
    for name, text in files:
        (tmp_path / name).write_text(text)
    read = SweepPlan.read(tmp_path / "plan.toml")
    assert len(read.cases()) == 8
    assert set(read_prices(read.prices or "")) == set(read.gpus)


def test_a_file_that_is_no_plan(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    for content in (b"scripts = [", b"\xff"):
        plan.write_bytes(content)
        with pytest.raises(InputError, match=r"plan\.toml: is no TOML"):
            SweepPlan.read(plan)
    with pytest.raises(InputError, match=r"none\.toml: cannot be read: No such file"):
        SweepPlan.read(tmp_path / "none.toml")


PLAN = """\
scripts = ["train.py", "other.py"]
recordings = "run.plim"
arguments = ["--depth 2 --name 'two words'"]
gpus = ["H100", "RTX 4090"]
confs = ["", "expandable_segments:True"]
allocators = ["native", "elastic"]
goal = "least-cost"
prices = "prices.csv"
[vary]
"--batch-size" = [4, 8, 0.5]
"""


@pytest.mark.parametrize("first", [0, 200])
def test_any_bytes_make_a_plan_or_one_line(first: int, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    plans = 0
    for number in range(first, first + 200):
        path.write_bytes(mutate_bytes(PLAN.encode(), random.Random(number)))
        with suppress(InputError):
            plans += bool(SweepPlan.read(path).cases())
    assert 0 < plans < 200


@pytest.mark.parametrize("first", [0, 200])
def test_any_data_makes_a_plan_or_one_line(first: int) -> None:
    plans = 0
    for number in range(first, first + 200):
        with suppress(InputError):
            values = mutate_tree(tomllib.loads(PLAN), random.Random(number))
            plans += bool(SweepPlan.parse(values).cases())
    assert 0 < plans < 200


def test_prices_are_read_from_both_formats(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("RTX 4090,0.69\n\nnvidia h100 , 2.5\n")
    (tmp_path / "p.toml").write_text('"RTX 4090" = 0.69\nH100 = 2.5\n')
    wanted = {"RTX 4090": 0.69, "H100": 2.5}
    assert read_prices(str(tmp_path / "p.csv")) == read_prices(str(tmp_path / "p.toml")) == wanted


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("H100 = true", "the price of H100 is a number above 0, not True"),
        ("H100 = -1", "not -1"),
        ("H100 = nan", "not nan"),
        ("H100 = [", "is no table of prices"),
        ("H900 = 1", "H900"),
    ],
)
def test_bad_prices(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(InputError, match=r"p\.toml: ") as refused:
        read_prices(str(tmp_path / "p.toml"))
    assert says in str(refused.value)


def row(gpu: str, used: int | None, total: int, samples: float | None = None) -> Row:
    """Makes a row of train.py; the case failed if `used` is None."""
    case = Case("prediction", "train.py", (), gpu, "", "native")
    if used is None:
        return Row(case, gpu, "it broke")
    return Row(
        case, gpu, None, used <= total, used, used, used, total,
        None if samples is None else 8 / samples, samples, {"gpu": gpu},
    )  # fmt: skip


ROWS = [
    row("H100", 21 * GiB, 79 * GiB, 400),
    row("RTX 4090", 20 * GiB, 23 * GiB, 200),
    row("L4", 19 * GiB, 22 * GiB, 50),
    row("T4", 18 * GiB, 14 * GiB, 500),
    row("A100-40GB", None, 40 * GiB),
]


@pytest.mark.parametrize(
    ("goal", "best"),
    [
        ("least-memory", "the least memory is needed by L4 (19.00 GiB)"),
        ("fits", "the smallest card that fits is L4 (19.00 GiB of 22.00 GiB)"),
        ("most-samples", "the fastest is H100 (400.0 samples/s)"),
        ("least-cost", "the cheapest is RTX 4090 (0.96 for a million samples)"),
    ],
)
def test_the_first_line_is_the_best_by_the_goal(goal: str, best: str) -> None:
    prices = {"H100": 2.5, "RTX 4090": 0.69, "L4": 0.3, "T4": 0.01}
    found = Sweep(goal, ROWS, 5, 0, "here", prices)
    assert str(found).splitlines()[0] == f"train.py: {best}; 3 of 5 cases fit"
    others = [line for line in str(found).splitlines() if line.startswith("Also: ")]
    assert [line.count(";") for line in others] == [2]
    assert best not in others[0]
    assert "train.py, A100-40GB failed: it broke" in str(found)
    assert '"goal": ' in found.to_json()
    assert "the card's end" in case_bars(found).plain
    assert best in found._repr_html_()


def test_a_case_is_marked_if_its_context_may_take_more_than_is_left() -> None:
    best, *others = ROWS[2], ROWS[0]
    found = Sweep("fits", [replace(best, may_not_fit=True), *others], 2, 0, "here")
    lines = str(found).splitlines()
    assert "L4 (19.00 GiB of 22.00 GiB, and may not fit); 2 of 2 cases fit" in lines[0]
    assert [line.split()[-2:] for line in lines if "19.00 GiB  " in line] == [["may", "not"]]
    assert "may not: the size of the CUDA context or the peak is an estimate" in str(found)
    assert "may not" not in str(Sweep("fits", [best, *others], 2, 0, "here"))


def test_the_price_and_the_size_of_a_job_are_those_of_all_its_cards() -> None:
    def of_job(each: Row) -> Row:
        return replace(each, case=replace(each.case, nproc_per_node=4, nnodes=2))

    prices = {"H100": 2.5, "L4": 0.3}
    one = [ROWS[0], ROWS[2]]
    alone = Sweep("least-cost", one, 2, 0, "here", prices)
    job = Sweep("least-cost", [of_job(each) for each in one], 2, 0, "here", prices)
    assert "the cheapest is L4 (1.67 for a million samples)" in str(alone)
    assert "the cheapest is L4 (13.33 for a million samples)" in str(job)
    assert "by the given hourly prices of all 8 cards." in str(job)
    assert "those of all 8 ranks, if each rank has samples of its own" in str(job)
    assert "L4 (19.00 GiB of 22.00 GiB on the fullest of 8 cards)" in str(job)
    assert job.rows[0].case.title == "train.py, H100, 8 ranks"
    assert "ranks" not in str(alone)


def test_fewer_jobs_than_scripts_run_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plimsoll.prediction.sweeps.sweep.cores", lambda: 8)
    script = SweepPlan.parse({"scripts": ["a.py"]})
    assert processes_of(script, None) is None
    for ranks, count in ((2, 4), (8, 1), (16, 1)):
        job = replace(script, nproc_per_node=ranks)
        assert processes_of(job, None) == count
        assert processes_of(job, 3) == 3


def test_a_table_of_a_version_without_jobs_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with ResultsFile(path) as kept:
        kept.keep(ROWS[0])
    later = ["nproc_per_node", "nnodes", "may_not_fit"]
    pq.write_table(pq.read_table(path).drop_columns(later), path)
    assert ResultsFile(path).done("H100") == ROWS[0]


def test_what_fits_nowhere_says_so() -> None:
    found = Sweep("fits", [ROWS[3]], 1, 0, "here")
    assert str(found).startswith("train.py fits in none of 1 case\n")
    broken = Sweep("fits", [ROWS[4]], 1, 0, "here")
    assert str(broken).startswith("train.py fails in all 1 case: it broke\n")


def test_a_table_gives_back_what_was_kept(tmp_path: Path) -> None:
    with ResultsFile(tmp_path / "t.parquet") as kept:
        for each in ROWS:
            kept.keep(each)
    again = ResultsFile(tmp_path / "t.parquet")
    # a failed row does not count as done, so its case runs again
    assert [again.done(each.key) for each in ROWS] == [*ROWS[:4], None]
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]


def test_a_large_table_is_not_written_for_each_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    write_table = pq.write_table

    def write_slowly(table: pa.Table, *arguments: Any, **named: Any) -> None:
        writes.append(table.num_rows)
        time.sleep(0.05)
        write_table(table, *arguments, **named)

    monkeypatch.setattr(pq, "write_table", write_slowly)
    path = tmp_path / "t.parquet"

    def rows() -> int:
        return int(pq.read_table(io.BytesIO(path.read_bytes())).num_rows)

    with ResultsFile(path) as kept:
        for number in range(1000):
            kept.keep(replace(ROWS[0], key=str(number)))
        assert writes == [1]
        assert rows() == 1  # the file is valid, although it lacks rows
        wait_for(lambda: rows() == 1000)  # a timer writes the other rows
        kept.keep(replace(ROWS[0], key="last"))
        assert writes == [1, 1000]
    assert writes == [1, 1000, 1001]
    assert [one.name for one in tmp_path.iterdir()] == ["t.parquet"]
    with ResultsFile(path) as again:
        assert again.done("last") is not None
    assert len(writes) == 3  # without new rows, nothing is written at the end


def test_a_table_that_cannot_be_written_later_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_file, "_REST", 1)
    folder = tmp_path / "results"
    folder.mkdir()
    kept = ResultsFile(folder / "t.parquet")
    kept.keep(ROWS[0])
    kept.keep(ROWS[1])
    shutil.rmtree(folder)
    wait_for(lambda: kept._error)
    with pytest.raises(InputError, match=r"t\.parquet: cannot be written"):
        kept.keep(ROWS[2])
    with pytest.raises(InputError, match=r"t\.parquet: cannot be written"), kept:
        pass


def test_another_file_is_no_table_and_stays(tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"a": [1]}), other)
    before = other.read_bytes()
    with pytest.raises(InputError, match="is no table of a sweep, and is not overwritten"):
        ResultsFile(other)
    other.write_bytes(before[:-9])
    with pytest.raises(InputError, match="is no table of a sweep"):
        ResultsFile(other)
    with pytest.raises(InputError, match=r"name it t\.parquet"):
        ResultsFile(tmp_path / "t.csv")
