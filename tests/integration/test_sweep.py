"""Tests `plimsoll sweep`: its rows equal single runs, and finished cases do not run again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import plimsoll
from plimsoll.base.units import MiB
from plimsoll.base.workers.done import NO_ANSWER, Done
from plimsoll.engine.gpus.profiles import gpu_profile
from plimsoll.prediction.sweeps.sweep import sweep
from tests.simulated import PROGRAMS
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from plimsoll.prediction.sweeps.case_runs import CaseRun

JOB = PROGRAMS / "jobs" / "rank.py"
SWEEP = [sys.executable, "-m", "plimsoll", "sweep"]
SCRIPT = """\
import sys, torch
n = int(sys.argv[2])
kept = [torch.empty(n << 20, device="cuda") for _ in range(3)]
del kept[1]
torch.empty(n << 19, device="cuda")
"""


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SWEEP, *arguments], capture_output=True, text=True, check=False, cwd=folder, timeout=300
    )


def figures(result: Any) -> Any:
    """Returns a result without the figures that differ from run to run or from host to host."""
    took = ("seconds", "timeline", "engine_seconds", "host_peak_bytes", "host_peak_range_bytes")
    if isinstance(result, list):
        return [figures(one) for one in result]
    return {key: value for key, value in result.items() if key not in took}


@pytest.mark.long
def test_rows_are_what_single_predictions_and_replays_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "broken.py").write_text("import torch\nraise ValueError('no such thing')\n")
    (tmp_path / "run.pickle.gz").write_bytes(recording())
    (tmp_path / "plan.toml").write_text(
        'scripts = ["script.py", "broken.py"]\nrecordings = ["run.pickle.gz"]\n'
        'gpus = ["T4"]\nconfs = ["", "expandable_segments:True"]\nvary = { "--n" = 400 }\n'
    )
    done = run("plan.toml", "--json", folder=tmp_path)
    assert done.returncode == 1, done.stderr
    rows = {(row["program"], row["conf"]): row for row in json.loads(done.stdout)["rows"]}
    assert len(rows) == 6
    for conf in ("", "expandable_segments:True"):
        alone = plimsoll.predict("script.py", ["--n", "400"], gpu="T4", conf=conf)
        assert figures(rows["script.py", conf]["result"]) == figures(as_json(alone.to_dict()))
        assert rows["script.py", conf]["device_used_bytes"] == alone.device_used_bytes
        limit = limit_of("T4")
        replayed = plimsoll.replay("run.pickle.gz", conf=conf, limit=limit)
        wanted = figures(as_json([one.to_dict() for one in replayed]))
        assert figures(rows["run.pickle.gz", conf]["result"]) == wanted
        assert "no such thing" in rows["broken.py", conf]["error"]
    assert "run the same command to try the 2 failed cases again" in done.stderr
    (tmp_path / "broken.py").write_text("import torch\ntorch.ones(1, device='cuda')\n")
    again = run("plan.toml", "--json", folder=tmp_path)
    assert again.returncode == 0, again.stderr
    found = json.loads(again.stdout)
    assert found["reused"] == 4
    assert [row for row in found["rows"] if row["program"] != "broken.py"] == [
        row for key, row in rows.items() if key[0] != "broken.py"
    ]


@pytest.mark.long
def test_a_row_of_a_job_is_what_a_prediction_of_the_job_says(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "prices.csv").write_text("T4,0.5\nL4,1\n")
    done = run(
        str(JOB), "--arguments=talks", "--vary=gpu=T4,L4", "--nproc-per-node=2", "--json",
        "--prices=prices.csv", folder=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [(row["gpu"], row["nproc_per_node"], row["fits"]) for row in rows] == [
        ("T4", 2, True),
        ("L4", 2, True),
    ]
    alone = plimsoll.predict(JOB, ["talks"], gpu="T4", nproc_per_node=2)
    assert rows[0]["device_used_bytes"] == alone.device_used_bytes
    ranks = as_json([one["peak_allocated_bytes"] for one in rows[0]["result"]["ranks"]])
    assert ranks == [1 * MiB, 2 * MiB]
    again = run(
        str(JOB), "--arguments=talks", "--vary=gpu=T4,L4", "--nproc-per-node=2", folder=tmp_path
    )
    assert "2 ranks" in again.stdout
    assert "if you add cases, plimsoll runs only the new ones" in again.stderr


def test_a_row_that_a_worker_made_up_is_an_error_of_its_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.pickle.gz").write_bytes(recording())
    monkeypatch.chdir(tmp_path)

    def answers(function: Any, runs: list[CaseRun], **_: Any) -> Iterator[Done[Any]]:
        rows = [function(run) for run in runs]
        del rows[1].__dict__["case"]  # as if another version had written the row
        yield Done(0, rows[0])
        yield Done(1, rows[1])
        yield Done(2, replace(rows[2], key=rows[3].key))
        yield Done(3, replace(rows[3], peak_allocated_bytes="much"))
        yield Done(4, replace(rows[4], result={1, 2}))

    monkeypatch.setattr("plimsoll.prediction.sweeps.sweep.run_all", answers)
    confs = ["", *(f"max_split_size_mb:{20 + number}" for number in range(4))]
    found = sweep({"recordings": ["run.pickle.gz"], "confs": confs}, results="kept.parquet")
    assert [row.error is None for row in found.rows] == [True] + 4 * [False]
    assert {row.error for row in found.rows[1:]} == {f"the process that worked on it {NO_ANSWER}"}
    assert len(pq.read_table("kept.parquet")) == 5


def recording() -> bytes:
    return (Path(__file__).parents[1] / "data" / "churn.default.pickle.gz").read_bytes()


def limit_of(gpu: str) -> int:
    return gpu_profile(gpu).total_bytes - gpu_profile(gpu).context_bytes


def as_json(values: Any) -> Any:
    return json.loads(json.dumps(values))


@pytest.mark.long
def test_two_hundred_replays_go_on_after_the_driver_is_killed(tmp_path: Path) -> None:
    (tmp_path / "run.pickle.gz").write_bytes(recording())
    confs = ";".join(f"max_split_size_mb:{20 + n}" for n in range(200))
    command = ["run.pickle.gz", f"--vary=conf={confs}", "--processes=2", "--json"]
    table = tmp_path / "sweep.parquet"
    driver = subprocess.Popen(
        [*SWEEP, *command], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert driver.stderr is not None
    told = [line for line, _ in zip(said(driver.stderr), range(40), strict=False)]
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    kept = set(pq.read_table(table)["conf"].to_pylist())
    assert len(told) == 40
    assert kept & set(told)  # not all of `told`: rows since the last write are lost
    assert len(kept) < 200
    done = run(*command, folder=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert found["reused"] == len(kept)
    assert [row["conf"] for row in found["rows"]] == confs.split(";")
    assert all(row["error"] is None for row in found["rows"])
    for number in (0, 100, 199):
        row = found["rows"][number]
        (alone,) = plimsoll.replay(tmp_path / "run.pickle.gz", conf=row["conf"])
        assert row["peak_reserved_bytes"] == alone.peak_reserved_bytes


def said(lines: Iterable[str]) -> Iterable[str]:
    """Yields each finished row's configuration from the progress lines."""
    for line in lines:
        if " of 200: " in line:
            yield line.split(", ")[1].partition(": ")[0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("plan.toml",), "plan.toml: cannot be read: No such file or directory"),
        (("none.py",), "none.py: no such file"),
        (("script.py", "--vary=card=H100"), "--vary is gpu, conf, allocator or an argument"),
        (("script.py", "--vary=gpu=H900"), "H900"),
        (("script.py", "--vary=conf=nonsense:1"), "the given configuration"),
        (("script.py", "--goal=least-cost"), "the goal least-cost needs 'prices'"),
        (("script.py", "--address=127.0.0.1:9"), "127.0.0.1:9"),
        (("script.py", "--results=out.csv"), "name it out.parquet"),
        (("script.py", "--processes=0"), "at least 1 process is needed"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(
    arguments: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from plimsoll.cli import app

    (tmp_path / "script.py").write_text("open('ran', 'w')")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        patch.setattr(sys, "argv", ["plimsoll", "sweep", *arguments])
        patch.setattr(signal, "signal", lambda *_: None)
        with pytest.raises(SystemExit) as ended:
            app.main()
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert says in lines[-1]
    assert lines[-1].startswith("plimsoll: ")
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_an_interrupt_keeps_what_is_done(tmp_path: Path) -> None:
    (tmp_path / "run.pickle.gz").write_bytes(recording())
    confs = ";".join(f"max_split_size_mb:{20 + n}" for n in range(1000))
    said = tmp_path.parent / f"{tmp_path.name}.stderr"
    with said.open("wb") as stderr:
        driver = subprocess.Popen(
            [*SWEEP, "run.pickle.gz", f"--vary=conf={confs}"],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True,
        )  # fmt: skip
        wait_for((tmp_path / "sweep.parquet").exists)
        driver.send_signal(signal.SIGINT)
        assert driver.communicate(timeout=60)[0] == b""
    assert driver.returncode == 130
    assert said.read_text().endswith(
        "sweep.parquet has the finished cases; run the command again to continue from there\n"
    )
    assert 0 < pq.read_table(tmp_path / "sweep.parquet").num_rows < 1000
    assert {path.name for path in tmp_path.iterdir()} == {"run.pickle.gz", "sweep.parquet"}
