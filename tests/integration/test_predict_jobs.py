"""Tests predictions of jobs with several ranks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from plimsoll import InputError, ScriptError
from plimsoll.base.units import MiB, format_size
from plimsoll.cli.launchers import own_arguments
from plimsoll.prediction.predict import predict
from plimsoll.prediction.rank_use import RankUse, SharedCard, with_ranges
from plimsoll.prediction.results import Prediction
from tests.simulated import PROGRAMS

if TYPE_CHECKING:
    from plimsoll.prediction.parts import StepTime

pytest.importorskip("torch")

RANK = PROGRAMS / "jobs" / "rank.py"
PREDICT = (sys.executable, "-m", "plimsoll", "predict", "--gpu", "T4")


def predict_command(*options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PREDICT, *map(str, options)], capture_output=True, text=True, check=False, timeout=300
    )


@pytest.fixture(scope="module")
def found() -> Prediction:
    """Returns the prediction of two ranks that communicate by NCCL."""
    return predict(RANK, ["talks"], gpu="T4", nproc_per_node=2)


@pytest.mark.long
def test_each_rank_is_seen_and_the_fullest_is_told(found: Prediction) -> None:
    assert [use.rank for use in found.ranks] == [0, 1]
    assert [use.host for use in found.ranks] == [0, 0]
    assert [use.device for use in found.ranks] == [0, 1]
    assert [use.peak_allocated_bytes for use in found.ranks] == [1 * MiB, 2 * MiB]
    assert [use.fits for use in found.ranks] == [True, True]
    assert found.worst_rank == 1
    assert found.peak_allocated_bytes == 2 * MiB
    assert found.processes == []


def test_what_nccl_takes_is_on_the_card(found: Prediction) -> None:
    assert len({use.nccl_bytes for use in found.ranks}) == 1
    assert found.nccl_bytes > 64 * MiB
    used = found.context_bytes + found.nccl_bytes + found.peak_reserved_bytes
    assert found.device_used_bytes == found.ranks[1].device_used_bytes == used
    assert found.headroom_bytes == found.total_bytes - used


def test_the_text_has_the_verdict_then_the_ranks_then_the_worst(found: Prediction) -> None:
    verdict, why, head, *rows = str(found).splitlines()
    assert why.startswith("Why: the largest part of the peak is ")
    assert verdict.startswith(f"{RANK} fits on T4: 2 of 2 ranks; rank 1 has the least to spare, ")
    assert head.split() == [
        "rank",
        "GPU",
        "allocated",
        "reserved",
        "NCCL",
        "on",
        "the",
        "card",
        "fits",
    ]
    assert rows[0].split()[:4] == ["0", "0", "1.00", "MiB"]
    assert rows[1].split()[:4] == ["1", "1", "2.00", "MiB"]
    assert rows[1].endswith(" yes")
    assert "\n\nRank 1:\n  peak allocated       2.00 MiB\n" in str(found)
    assert f"\n  NCCL's part      {format_size(found.nccl_bytes):>12}  (" in str(found)


def test_many_ranks_of_equal_figures_share_a_row(found: Prediction) -> None:
    one = found.ranks[0]
    ranks = [replace(one, rank=rank, device=rank % 8, host=rank // 8) for rank in range(24)]
    ranks[7] = replace(ranks[7], peak_allocated_bytes=9 * MiB)
    rows = str(replace(found, ranks=ranks)).splitlines()[3:5]
    assert rows[0].split("  ")[1].strip() == "0-6, 8-23"
    assert rows[1].split()[:2] == ["7", "0:7"]


@pytest.mark.long
def test_a_card_that_several_ranks_use_is_named() -> None:
    found = predict(RANK, ["talks", "crowds"], gpu="T4", nproc_per_node=2)
    assert found.worst_rank == 0  # rank 0's card also holds the other rank's context
    own = found.context_bytes + found.nccl_bytes + found.peak_reserved_bytes
    other = found.context_bytes + 2 * MiB
    (card,) = found.shared_cards
    assert card == SharedCard(0, 0, [0, 1], 2, card.together_bytes, card.at_most_bytes)
    assert found.headroom_bytes == found.total_bytes - card.together_bytes
    granules = 6 * MiB  # the driver rounds up two contexts and NCCL's memory
    assert own + other <= card.together_bytes <= own + other + granules
    assert found.ranks[0].card_used_bytes == card.together_bytes
    text = f"GPU 0 is used by ranks 0, 1: together they take {format_size(card.together_bytes)}\n"
    assert text in str(found)
    less = replace(found, total_bytes=card.together_bytes - 1)
    assert "more than the card has" in str(less)


@pytest.mark.long
def test_ranks_that_together_take_more_than_their_card_has_do_not_fit(tmp_path: Path) -> None:
    script = tmp_path / "crowd.py"
    script.write_text(
        "import torch\ntorch.distributed.init_process_group('gloo')\n"
        "held = torch.zeros(9 << 30, dtype=torch.uint8, device='cuda')\n"
        "torch.distributed.barrier()\n"
    )
    found = predict(script, gpu="T4", gpus=1, nproc_per_node=2)
    assert found.fits is False
    assert [use.fits for use in found.ranks] == [False, False]
    assert all((use.device_used_bytes or 0) < found.total_bytes for use in found.ranks)
    assert found.headroom_bytes == found.total_bytes - found.shared_cards[0].together_bytes < 0


@pytest.mark.long
def test_a_launchers_job_is_seen_too_and_the_launcher_is_no_rank() -> None:
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", RANK, "--", "some")
    done = predict_command("--json", "--gpus", "2", *launcher)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["worst_rank"] == 1
    assert told["processes"] == []
    assert [use["peak_allocated_bytes"] for use in told["ranks"]] == [1 * MiB, 2 * MiB]
    assert set(told["ranks"][0]) == {
        "rank", "host", "device", "peak_allocated_bytes", "peak_reserved_bytes",
        "device_used_bytes", "nccl_bytes", "nccl_range_bytes", "fits", "device_used_range_bytes",
        "peak_allocated_range_bytes", "peak_reserved_range_bytes", "stands_for", "card_used_bytes",
        "serving",
    }  # fmt: skip
    assert told["ranks"][0]["peak_allocated_range_bytes"] is None
    assert "with ['some']" in done.stderr


@pytest.mark.long
def test_a_rank_that_fails_ends_the_others_and_its_traceback_is_shown() -> None:
    began = time.monotonic()
    done = predict_command("--nproc-per-node", 2, RANK, "--", "fails", "waits")
    # If rank 1's failure did not end rank 0, rank 0 would wait for minutes.
    assert time.monotonic() - began < 100
    assert done.returncode == 2
    assert "[rank 1] ValueError: this rank gives up\n" in done.stderr
    assert "[rank 0] Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"plimsoll: {RANK} ended with status 1: rank 1: ValueError: this rank")


@pytest.mark.long
def test_a_ranks_exit_status_is_the_jobs() -> None:
    with pytest.raises(ScriptError, match="status 3: rank 1 failed") as raised:
        predict(RANK, ["ends"], nproc_per_node=2)
    assert raised.value.status == 3


@pytest.mark.long
def test_ranks_of_a_group_may_be_numpys_numbers() -> None:
    assert len(predict(RANK, ["talks", "numbers"], nproc_per_node=2).ranks) == 2


@pytest.mark.long
def test_a_rank_that_exits_is_the_cause_and_not_those_that_waited_for_it() -> None:
    with pytest.raises(ScriptError, match="status 3: rank 1 failed"):
        predict(RANK, ["talks", "ends"], nproc_per_node=2)


@pytest.mark.long
def test_a_rank_that_runs_out_of_memory_does_not_fit() -> None:
    found = predict(RANK, ["fills"], gpu="T4", nproc_per_node=2)
    assert not found.fits
    assert found.worst_rank == 1
    assert [use.fits for use in found.ranks] == [True, False]
    assert (found.ranks[1].peak_reserved_bytes or 0) > 20 << 30
    assert " does not fit on T4: 1 of 2 ranks; rank 1 is the worst, " in str(found).splitlines()[0]


@pytest.mark.long
def test_ranks_have_the_environment_that_torchrun_gives_them(tmp_path: Path) -> None:
    script = tmp_path / "environment.py"
    script.write_text(
        "import os\nif os.environ['RANK'] == '1': print(*sorted(os.environ.items()), sep='\\n')\n"
    )
    ours = predict_command("--nproc-per-node", "2", script)
    torchrun = ("--gpus", "2", "-m", "torch.distributed.run", "--nproc-per-node", "2")
    theirs = predict_command(*torchrun, script)
    given = [dict(re.findall(r"\('(\w+)', '(.*)'\)", done.stderr)) for done in (ours, theirs)]
    # Only torchrun's agent sets these two variables. plimsoll has no such agent.
    own = {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"}
    assert {name for name in given[1] if name not in given[0]} <= own
    values = {"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
              "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "ROLE_NAME", "OMP_NUM_THREADS",
              "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"}  # fmt: skip
    assert {name: given[0][name] for name in values} == {name: given[1][name] for name in values}


@pytest.mark.long
def test_a_job_without_gpus_needs_none() -> None:
    found = predict(RANK, ["nowhere"], nproc_per_node=2)
    assert not found.uses_cuda
    assert found.ranks == []


def waiting_job() -> tuple[subprocess.Popen[str], list[int]]:
    """Starts a job of two ranks, and returns when both ranks wait.

    Returns:
        The command's process, and the process ids of the ranks.
    """
    command = subprocess.Popen(
        [*PREDICT, "--nproc-per-node", "2", str(RANK), "--", "waits"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert command.stderr is not None
    said = []
    for line in command.stderr:
        said.append(line)
        waiting = [int(line.split()[-1]) for line in said if "] waiting " in line]
        if len(waiting) == 2:
            return command, waiting
    raise AssertionError("".join(said))


def ends_soon(process: int) -> bool:
    for _ in range(200):
        try:
            state = (
                (Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[0]
            )
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.long
def test_an_interrupt_gives_the_answer_so_far_and_leaves_no_process() -> None:
    command, ranks = waiting_job()
    os.killpg(command.pid, signal.SIGINT)
    out, error = command.communicate(timeout=60)
    assert command.returncode == 130, error
    assert " fits on T4 so far: 2 of 2 ranks; " in out.splitlines()[0]
    assert "Traceback" not in error
    assert all(map(ends_soon, ranks))


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_is_ended_leaves_no_process(number: signal.Signals) -> None:
    command, ranks = waiting_job()
    command.send_signal(number)
    command.communicate(timeout=60)
    assert all(map(ends_soon, ranks))


def test_ranges_of_trials_are_merged_by_rank() -> None:
    def trial(low: int, high: int) -> list[RankUse]:
        ranges = {
            "peak_allocated_range_bytes": (low, high),
            "peak_reserved_range_bytes": (high,) * 2,
        }
        return [RankUse(0, 0), RankUse(1, 0, **ranges)]  # type: ignore[arg-type]

    merged = with_ranges(trial(3, 4), [trial(3, 4), trial(2, 3), trial(5, 6)])
    assert [use.peak_allocated_range_bytes for use in merged] == [None, (2, 6)]
    assert [use.peak_reserved_range_bytes for use in merged] == [None, (3, 6)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("train.py -- -m torch.distributed.run", "train.py -- -m torch.distributed.run"),
        ("train.py --gpu T4 -- -x", "train.py --gpu T4 -- -x"),
        ("--json -m torch.distributed.run --nproc-per-node 2 train.py -- -x",
         "--json -m torch.distributed.run -- --nproc-per-node 2 train.py -x"),
        ("-m torch.distributed.run -- --nproc-per-node 2 train.py -x",
         "-m torch.distributed.run -- --nproc-per-node 2 train.py -x"),
        ("/bin/torchrun --nnodes 2 train.py", "/bin/torchrun -- --nnodes 2 train.py"),
        ("--json python3.11 -m sglang.launch_server --tp 2",
         "--json -m sglang.launch_server -- --tp 2"),
        ("-m sglang.launch_server --tp 2", "-m sglang.launch_server -- --tp 2"),
        ("--gpu T4 sglang serve org/m --tp 2", "--gpu T4 sglang -- serve org/m --tp 2"),
    ],
)  # fmt: skip
def test_what_follows_a_launcher_is_its_own(words: str, expected: str) -> None:
    assert own_arguments(words.split()) == expected.split()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nnodes": 2}, "a job of several nodes takes the number of processes on each"),
        ({"nproc_per_node": 0}, "a job has at least 1 node, and 1 process on each"),
        ({"nproc_per_node": 65}, "a machine has 1 to 64 GPUs, not 65"),
        ({"nproc_per_node": 64, "nnodes": 99}, "at most 1024 processes run here, not 6336"),
        ({"nproc_per_node": 2, "at_most_events": 9}, "--at-most-events does not go with a job"),
    ],
)  # fmt: skip
def test_a_job_that_cannot_be_is_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        predict(RANK, **options)  # type: ignore[arg-type]


def all_reduced(nproc_per_node: int, nnodes: int = 1) -> StepTime:
    """Returns the time of a step that reduces 256 MiB."""
    found = predict(
        PROGRAMS / "jobs" / "reduces.py",
        [],
        gpu="H200",
        nproc_per_node=nproc_per_node,
        nnodes=nnodes,
    )
    assert found.step is not None
    return found.step


@pytest.mark.long
def test_a_collective_takes_as_long_as_on_two_cards() -> None:
    step = all_reduced(2)
    # benchmarks/results/collectives_2_H200.csv: 972 us, which includes the host's time to call it.
    assert step.communicating_seconds == pytest.approx(0.00085, rel=0.15)
    assert step.network_gbit_per_s is None


@pytest.mark.long
def test_a_collective_between_machines_has_the_network_s_rate() -> None:
    step = all_reduced(1, nnodes=2)
    assert step.network_gbit_per_s == 400
    assert step.communicating_seconds == pytest.approx((256 << 20) / 45e9, rel=0.05)
    assert step.seconds_range[1] > 2 * step.seconds


@pytest.mark.long
def test_some_ranks_of_a_job_save_its_checkpoint(tmp_path: Path) -> None:
    saves = PROGRAMS / "jobs" / "saves_shards.py"
    found = predict(saves, [str(tmp_path / "saved")], gpu="H200", nproc_per_node=8, ranks="0,7")
    assert found.fits
    assert any("saved" in each.path for each in found.written)
