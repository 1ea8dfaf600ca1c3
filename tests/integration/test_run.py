"""Tests `plimsoll run`: it separates its arguments from the script's, and reports failures."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest

from plimsoll.base.units import GiB, format_size
from plimsoll.engine.gpus.profiles import gpu_profile
from tests.commands import run_plimsoll
from tests.simulated import PROGRAMS

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


run = partial(run_plimsoll, "run")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text("import sys\nprint(sys.argv[1:])\nsys.exit(3)\n")
    return path


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        (["--metrics", "many"], "metrics are served on a port, such as 9400 or 10.0.0.7:9400"),
        (["--record-limit", "1GiB"], "--record-limit goes with --record"),
        (["--record", "run.plim", "--record-limit", "1MiB"], "a recording's limit is at least 16"),
    ],
)
def test_a_way_to_watch_that_cannot_be_is_refused_before_the_script_runs(
    options: list[str], refusal: str, script: Path, tmp_path: Path
) -> None:
    done = run("--simulate", "T4", *options, script, folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"plimsoll: {refusal}")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == [script]


ASKS = """
import sys, urllib.request
import torch

kept = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
with urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics") as answer:
    print("plimsoll_allocated_bytes" in answer.read().decode())
"""


def test_a_script_that_knows_nothing_of_it_serves_metrics(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    path = tmp_path / "asks.py"
    path.write_text(ASKS)
    done = run("--simulate", "T4", "--metrics", port, path, port)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", int(port)))
        taken.listen()
        done = run("--simulate", "T4", "--metrics", port, ALLOCATES)
    assert done.returncode == 0
    assert done.stderr.startswith(f"plimsoll: no metrics on 127.0.0.1, port {port}: Address alr")


@needs_no_gpu
@pytest.mark.parametrize("options", [[], ["--allocator", "native"], ["--allocator", "torch"]])
def test_without_a_gpu_one_line_names_the_way_out(script: Path, options: list[str]) -> None:
    done = run(*options, script)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "plimsoll: there is no NVIDIA GPU here; --simulate H100 runs the script without one"
    ]


def test_a_script_that_does_not_exist_is_named() -> None:
    done = run("no_such.py")
    assert done.returncode == 2
    assert done.stderr == "plimsoll: no_such.py: no such file\n"


@pytest.mark.parametrize(
    "options", [["--gpus", "2"], ["--driver", "wddm"], ["--host-memory", "64GiB"]]
)
def test_what_only_a_simulated_machine_has_goes_with_one(script: Path, options: list[str]) -> None:
    done = run(*options, script)
    assert done.returncode == 2
    assert done.stderr == f"plimsoll: {options[0]} goes with --simulate\n"


@pytest.mark.parametrize("where", [".", "nowhere/account.json"])
def test_an_account_that_could_not_be_written_stops_nothing_later(
    script: Path, tmp_path: Path, where: str
) -> None:
    done = run("--json", where, "--simulate", "H100", script, folder=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""  # empty, because the script did not run
    assert done.stderr.startswith(f"plimsoll: {where}: cannot be written")
    assert done.stderr.count("\n") == 1


def test_an_account_needs_a_file(script: Path) -> None:
    done = run("--json", "--simulate", "H100", script)
    assert done.returncode == 2
    told = "--json takes a file, such as --json run.json, and got --simulate"
    assert done.stderr == f"plimsoll: {told}\n"


@pytest.mark.parametrize("target", ["there", "not_there"])
def test_a_recording_is_not_written_through_a_link(
    script: Path, tmp_path: Path, target: str
) -> None:
    (tmp_path / "there").write_text("mine")
    (tmp_path / "run.plim").symlink_to(tmp_path / target)
    done = run("--record", "run.plim", "--simulate", "T4", script, folder=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""  # empty, because the script did not run
    assert done.stderr == "plimsoll: run.plim: is a link, and links are not followed\n"
    assert (tmp_path / "there").read_text() == "mine"
    assert not (tmp_path / "not_there").exists()


def test_an_unknown_allocator_is_named(script: Path) -> None:
    done = run("--allocator", "fast", script)
    assert done.returncode == 2
    assert done.stderr == (
        "plimsoll: unknown allocator 'fast'; there are elastic, native and torch\n"
    )


@pytest.mark.parametrize("separator", [[], ["--"]])
def test_what_follows_the_script_is_its_own(script: Path, separator: list[str]) -> None:
    own = ["--gpus", "9", "-m", "--", "--help", "data.bin"]
    done = run("--simulate", "T4", script, *separator, *own)
    assert done.stdout == f"{own}\n"
    assert done.returncode == 3


@pytest.mark.parametrize(
    ("before", "late"), [([], ["--simulate", "A100"]), (["--epochs", "3"], ["--simulate=H100"])]
)
def test_an_option_that_stands_too_late_is_told_its_place(
    script: Path, before: list[str], late: list[str]
) -> None:
    done = run(script, *before, *late)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"plimsoll: {' '.join(late)} stands after the script, so it would go to the script. To "
        f"simulate a card, write plimsoll run {' '.join(late)} {script}. If it is an option of the "
        "script, put -- right after the script\n"
    )


@pytest.mark.long
def test_a_script_may_have_an_option_of_that_name(script: Path) -> None:
    for before in ([script, "--"], [script]):
        done = run("--simulate", "T4", *before, "--simulate", "fast")
        assert (done.returncode, done.stdout) == (3, "['--simulate', 'fast']\n")
    assert "too late" not in run(script, "--", "--simulate", "fast").stderr


@pytest.mark.parametrize("name", ["x.pickle", "x.parquet", "x.pickle.gz"])
def test_a_recording_has_no_other_formats_name(script: Path, name: str, tmp_path: Path) -> None:
    done = run("--simulate", "T4", "--record", tmp_path / name, script)
    assert done.returncode == 2
    assert done.stderr.startswith(f"plimsoll: {tmp_path / name}: a recording is a .plim file; name")
    assert list(tmp_path.iterdir()) == [script]


ALLOCATES = PROGRAMS / "simulated" / "allocates.py"


def test_a_simulated_run_ends_with_an_account() -> None:
    done = run("--simulate", "T4", ALLOCATES, "own")
    assert (done.returncode, done.stdout) == (0, "['own']\n")
    used = format_size(3 * GiB + gpu_profile("T4").context_with(()))
    assert done.stderr == (
        "plimsoll: GPU 0, the native allocator: peak allocated 3.00 GiB, reserved 3.00 GiB, "
        f"in use on the card {used}\n"
    )


@pytest.mark.long
def test_the_account_says_what_pytorch_would_have_reserved(tmp_path: Path) -> None:
    path = PROGRAMS / "simulated" / "many_sizes.py"
    summaries = {}
    for allocator in ("native", "elastic"):
        file = tmp_path / f"{allocator}.json"
        done = run("--simulate", "T4", "--allocator", allocator, "--json", file, path)
        assert (done.returncode, done.stderr) == (0, "")
        summaries[allocator] = json.loads(file.read_text())
    native, elastic = summaries["native"], summaries["elastic"]
    assert native["torch_peak_reserved_bytes"] is None
    assert elastic["torch_peak_reserved_bytes"] == native["peak_reserved_bytes"]
    assert elastic["torch_num_ooms"] == 0
    assert elastic["peak_reserved_bytes"] < native["peak_reserved_bytes"]


def test_modules_are_simulated_too() -> None:
    done = run("--simulate", "T4", "-m", "allocates", "--own", folder=ALLOCATES.parent)
    assert (done.returncode, done.stdout) == (0, "['--own']\n")
    assert "peak allocated 3.00 GiB" in done.stderr


def test_a_simulated_script_is_the_process_that_was_started(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
    command = [sys.executable, "-m", "plimsoll", "run", "--simulate", "T4", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        process.terminate()
    assert process.returncode == -signal.SIGTERM
