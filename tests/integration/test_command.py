"""Tests the command line: its output, and its exit status."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plimsoll import Replays, replay
from tests.commands import run_plimsoll
from tests.recordings import EXAMPLES, SMALL

RECORDING = EXAMPLES / "gpt2_adamw.pickle.gz"
KEYS = {
    "file", "device", "allocator", "conf", "limit_bytes", "peak_allocated_bytes",
    "peak_active_bytes", "peak_reserved_bytes", "utilization", "num_alloc_retries", "num_ooms",
    "first_oom_event", "events", "engine_seconds", "driver_seconds", "matches_recording",
    "first_difference",
}  # fmt: skip


def event(action: str, address: int, size: int) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 1}


def snapshot(*events: dict[str, Any], conf: str = "") -> dict[str, Any]:
    settings = {"PYTORCH_CUDA_ALLOC_CONF": conf}
    return {"segments": [], "device_traces": [list(events)], "allocator_settings": settings}


_SEGMENT = {
    "device": 0,
    "address": 4096,
    "total_size": 512,
    "segment_type": "small",
    "blocks": [{"size": 512, "state": "gone"}],
}


def test_json_is_one_object_a_replay() -> None:
    done = run_plimsoll(
        "replay", RECORDING, "--json", "--conf", "", "--conf", "max_split_size_mb:128"
    )
    first, second = map(json.loads, done.stdout.splitlines())
    assert set(first) >= KEYS
    assert first["matches_recording"] is True
    assert second["matches_recording"] is None
    assert second["conf"] == "max_split_size_mb:128"
    assert first["peak_reserved_bytes"] == 10221518848


def test_a_reader_that_has_seen_enough_is_no_failure() -> None:
    command = [sys.executable, "-m", "plimsoll", "replay", str(RECORDING), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait() == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_an_answer_that_cannot_be_written_is_a_failure() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "plimsoll", "replay", str(RECORDING), "--limit", "6GiB"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
            env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        )  # fmt: skip
    assert done.stderr == "plimsoll: standard output: No space left on device\n"
    assert done.returncode == 2


def test_two_tiers_are_reported_with_the_least_that_they_cost() -> None:
    tiers = ("--dedicated", "6GiB", "--shared", "32GiB")
    done = run_plimsoll("replay", RECORDING, "--allocator", "elastic", *tiers)
    assert done.returncode == 0
    assert "requests spilled into shared memory" in done.stdout
    assert "That costs at least" in done.stdout
    row = next(line for line in done.stdout.splitlines() if line.startswith("elastic"))
    assert row.split()[5:9] == ["6.00", "GiB", "2.16", "GiB"]
    as_json = json.loads(run_plimsoll("replay", RECORDING, *tiers, "--json").stdout)
    assert (as_json["gpu_memory_bytes"], as_json["shared_memory_bytes"]) == (6 << 30, 32 << 30)
    assert as_json["shared"]["peak_dedicated_bytes"] == 6 << 30
    assert as_json["shared"]["peak_bytes"] == as_json["peak_reserved_bytes"] - (6 << 30)
    assert as_json["shared"]["transfer_seconds"] > 0


def test_more_than_both_tiers_ends_with_one() -> None:
    done = run_plimsoll("replay", RECORDING, "--dedicated", "6GiB", "--shared", "1GiB")
    assert done.returncode == 1
    assert "Out of memory at event" in done.stdout


def test_a_program_that_ran_out_of_memory_is_replayed_as_it_was() -> None:
    done = run_plimsoll("replay", EXAMPLES / "gpt2_adamw_oom.pickle.gz", "--json")
    assert done.returncode == 0
    result = json.loads(done.stdout)
    assert result["matches_recording"] is True
    assert (result["num_ooms"], result["num_alloc_retries"]) == (1, 1)
    assert result["first_oom_event"] == 748


def test_a_difference_ends_with_one_and_is_shown() -> None:
    done = run_plimsoll("replay", SMALL / "pool_no_split.default.pickle.gz")
    assert done.returncode == 1
    assert "Differs from the recording at event 2" in done.stdout


def test_keys_without_effect_are_named() -> None:
    done = run_plimsoll("replay", RECORDING, "--conf", "pinned_use_background_threads:True")
    assert done.returncode == 0
    assert "pinned_use_background_threads has no effect here" in done.stderr


def test_a_history_without_segments_is_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "plain.pickle"
    path.write_bytes(pickle.dumps(snapshot(event("alloc", 4096, 3 << 20))))
    done = run_plimsoll("replay", path, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["matches_recording"] is None


class Bomb:
    """An object that makes a folder when Python's own unpickler reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def bad_files(folder: Path) -> dict[str, tuple[bytes, str]]:
    good = pickle.dumps(snapshot(event("alloc", 4096, 512)))
    unknown = snapshot(event("free_requested", 4096, 512), event("free_completed", 4096, 512))
    bomb = {"device_traces": [[Bomb(folder / "ran")]]}
    return {
        "text": (b"hello, this is not a pickle", "not a readable pickle"),
        "empty file": (b"", "the file is empty"),
        "truncated pickle": (good[:60], "the pickle is truncated"),
        "truncated gzip": (gzip.compress(good)[:40], "the gzip file is truncated"),
        "damaged gzip": (gzip.compress(good)[:-8] + b"12345678", "the gzip file is damaged"),
        "code": (pickle.dumps(bomb), "would run code: it asks for posix.mkdir"),
        "code, protocol 0": (pickle.dumps(bomb, 0), "would run code"),
        "list": (pickle.dumps([1, 2]), "not a memory snapshot"),
        "no traces": (pickle.dumps({"segments": []}), "has no 'device_traces'"),
        "no events": (pickle.dumps({"device_traces": [[], []]}), "the history is empty"),
        "unknown free": (pickle.dumps(unknown), "event 0 frees 0x1000, which is not allocated"),
        "negative size": (
            pickle.dumps(snapshot(event("alloc", 4096, -5))),
            "event 0 of device 0 has a negative size (-5)",
        ),
        "zero size": (pickle.dumps(snapshot(event("alloc", 4096, 0))), "asks for 0 bytes"),
        "unknown action": (
            pickle.dumps(snapshot(event("explode", 4096, 5))),
            "unknown action 'explode'",
        ),
        "unknown state": (
            pickle.dumps(snapshot(event("alloc", 4096, 512)) | {"segments": [_SEGMENT]}),
            "segment 0 of device 0 has a block of an unknown state 'gone'",
        ),
        "unknown recorded key": (
            pickle.dumps(snapshot(event("alloc", 4096, 5), conf="foo:1")),
            "unknown key 'foo'",
        ),
        "parquet": (b"PAR1" + b"\0" * 40 + b"PAR1", "not a columnar trace"),
    }


@pytest.mark.parametrize("what", bad_files(EXAMPLES))
def test_a_bad_file_gets_one_clear_line(what: str, tmp_path: Path) -> None:
    content, expected = bad_files(tmp_path)[what]
    path = tmp_path / "file"
    path.write_bytes(content)
    done = run_plimsoll("replay", path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"plimsoll: {path}: ")
    assert done.stderr.count("\n") == 1
    assert expected in done.stderr
    assert not (tmp_path / "ran").exists()


def test_the_bomb_is_a_real_one(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(tmp_path / "ran")))
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("verb", ["predict", "fit"])
def test_an_option_of_the_script_is_told_its_place(verb: str) -> None:
    done = run_plimsoll(verb, "train.py", "--momentum", "0.9")
    assert done.returncode == 2
    assert done.stderr == (
        f"plimsoll: no such option: --momentum; options of the script go after --; "
        f"see plimsoll {verb} --help\n"
    )
    done = run_plimsoll(verb, "train.py", "--batch_size", "8")
    assert done.stderr == (
        f"plimsoll: no such option: --batch_size; options of the script go after --; "
        f"see plimsoll {verb} --help\n"
    )
    done = run_plimsoll(verb, "train.py", "--gpus", "RTX 4090")
    assert done.stderr == (
        "plimsoll: --gpus takes a number of cards, and --gpu a card's name; "
        f"see plimsoll {verb} --help\n"
    )
    done = run_plimsoll(verb, "train.py", "--batch-size", "8")
    assert done.returncode == 2
    assert done.stderr == (
        "plimsoll: --batch-size is for a recipe, and needs --model; options of a script go after "
        "--\n"
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nowhere.pickle"], "nowhere.pickle: no such file"),
        ([str(SMALL)], "is a directory"),
        ([str(RECORDING), "--limit", "12 parsecs"], "not a size: '12 parsecs'"),
        ([str(RECORDING), "--limit", "0"], "a size must be above zero"),
        (
            [str(RECORDING), "--limit", "24"],
            "'24' has no unit, so it is bytes; did you mean 24GiB?",
        ),
        ([str(RECORDING), "--dedicated", "6", "--shared", "32"], "did you mean 6GiB?"),
        ([str(RECORDING), "--gpu-memory", "512K"], "512.00 KiB is no size of memory"),
        ([str(RECORDING), "--gpu-memory", "-1GiB"], "not a size: '-1GiB'"),
        ([str(RECORDING), "--dedicated", "-6GiB", "--shared", "1GiB"], "not a size: '-6GiB'"),
        ([str(RECORDING), "--dedicated", "6GiB", "--shared", "0"], "a size must be above zero"),
        ([str(RECORDING), "--dedicated", "6GiB"], "--dedicated and --shared go together"),
        ([str(RECORDING), "--dedicated", "6GiB"], "give --gpu-memory"),
        ([str(RECORDING), "--shared", "6GiB"], "go together"),
        (
            [str(RECORDING), "--dedicated", "6GiB", "--shared", "6GiB", "--gpu-memory", "6GiB"],
            "give one of them",
        ),
        ([str(RECORDING), "--conf", "max_split_size:64"], "unknown key 'max_split_size'"),
        ([str(RECORDING), "--conf", "max_split_size_mb:4"], "must be at least 20, not 4"),
        (
            [str(RECORDING), "--conf", "expandable_segments:True,max_split_size_mb=128"],
            "the given configuration: a colon stands between a key and its value; did you mean "
            "'max_split_size_mb:128'?",
        ),
        ([str(RECORDING), "--conf", "expandable_segments:yes"], "takes True or False, not 'yes'"),
        ([str(RECORDING), "--conf", "backend:cudaMallocAsync"], "is another allocator"),
        ([str(RECORDING), "--version", "1.13"], "unknown PyTorch version '1.13'"),
        ([str(RECORDING), "--allocator", "magic"], "unknown allocator 'magic'"),
        ([str(RECORDING), "--limit"], "requires an argument; see plimsoll replay --help"),
        ([str(RECORDING), "--json=1"], "does not take a value; see plimsoll replay --help"),
        ([str(RECORDING), "--magic"], "no such option: --magic; see plimsoll replay --help"),
        ([], "missing argument 'FILE'; see plimsoll replay --help"),
        (
            [str(RECORDING), "--version", "2.9", "--conf", "large_segment_size_mb:64"],
            "exists from PyTorch 2.11 on, not in 2.9",
        ),
    ],
)
def test_a_bad_argument_gets_one_clear_line(arguments: list[str], expected: str) -> None:
    done = run_plimsoll("replay", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("plimsoll: ")
    assert done.stderr.count("\n") == 1
    assert expected in done.stderr


def test_a_page_that_is_not_opened_is_said_to_be(tmp_path: Path) -> None:
    done = run_plimsoll("view", RECORDING, "--open", "-o", tmp_path / "page.html")
    assert done.returncode == 0
    assert done.stderr == "note: --open opened nothing, because stderr is no terminal\n"


VERBS = ("predict", "fit", "run", "replay", "explain", "view", "top", "gpus")


@pytest.mark.parametrize("verb", [[], *([verb] for verb in VERBS)])
def test_the_short_option_shows_the_help_too(verb: list[str]) -> None:
    short, long = run_plimsoll(*verb, "-h"), run_plimsoll(*verb, "--help")
    assert (short.returncode, short.stderr) == (0, "")
    assert short.stdout == long.stdout
    assert short.stdout.startswith("Usage: plimsoll")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["fit", "train.py", "--vary"], "option '--vary' requires an argument"),
        (["run", "--gpus"], "option '--gpus' requires an argument"),
        (["predict", "train.py", "--gpus", "many"], "--gpus takes a number of cards"),
        (["top", "--once=3"], "option '--once' does not take a value"),
        (["explain", "x.plim", "--device"], "option '--device' requires an argument"),
        (["view", "a", "b", "c"], "got unexpected extra argument"),
    ],
)
def test_a_bad_value_points_to_the_help_of_its_verb(arguments: list[str], reason: str) -> None:
    done = run_plimsoll(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(f"plimsoll: {reason}")
    assert done.stderr.endswith(f"; see plimsoll {arguments[0]} --help\n")


def test_a_list_of_replays_prints_the_table_of_the_command() -> None:
    confs = ["expandable_segments:True", "max_split_size_mb:128"]
    found = [replay(RECORDING, conf=conf) for conf in confs]
    done = run_plimsoll("replay", RECORDING, *(word for conf in confs for word in ("--conf", conf)))
    shown = str(Replays([*found[0], *found[1]]))
    # The table shows the path as given. `replay` and the command both got RECORDING.
    assert done.stdout.rstrip("\n") == shown
    assert shown.startswith("expandable_segments:True reserves the least, 8.92 GiB: ")
    assert shown.splitlines()[3].split()[:2] == ["configuration", "allocated"]
    (one,) = found[0]
    assert found[0] == [one]
    assert "expandable_segments:True" in str(found[0])
    assert repr(found[0]) == str(found[0])  # a notebook shows the repr
    assert repr(Replays()) == "[]"


def test_replays_of_two_files_make_two_tables() -> None:
    other = EXAMPLES / "gpt2_adamw_oom.pickle.gz"
    first, second = replay(RECORDING), replay(other)
    assert str(Replays([*first, *second])) == f"{first}\n\n{second}"
    assert str(Replays([*second, *first])) == f"{second}\n\n{first}"


@pytest.mark.parametrize(
    "arguments",
    [
        ["replay", str(RECORDING), "--json"],
        ["explain", str(RECORDING), "--no-advice", "--json"],
        ["view", str(RECORDING), "-o", "OUT.html", "--json"],
        ["view", str(RECORDING), "--export", "csv", "-o", "OUT.csv", "--json"],
        ["gpus", "--json"],
        ["top", "--json"],
    ],
)
def test_every_object_says_the_version_of_its_schema(arguments: list[str], tmp_path: Path) -> None:
    done = run_plimsoll(*(one.replace("OUT", str(tmp_path / "out")) for one in arguments))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines
    assert all(next(iter(json.loads(line).items())) == ("schema", 2) for line in lines)
