"""Tests `plimsoll fit` and `plimsoll sweep` on `vllm serve`; a small engine takes vLLM's place."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.commands import run_plimsoll
from tests.programs.small_engine import LONGEST, TOKEN_BYTES, WEIGHTS_BYTES
from tests.small_engine import install_small_engine

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the small engine. All tests use this folder and the results in it."""
    folder = tmp_path_factory.mktemp("serving")
    install_small_engine(folder)
    return folder


def run(folder: Path, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
    packages = {"PYTHONPATH": str(folder / "packages")}
    return run_plimsoll(verb, *words, folder=folder, environment=packages)


def answer(folder: Path, *words: str, status: int = 0) -> dict[str, Any]:
    done = run(folder, "fit", "--json", "--results", "kept.parquet", *words)
    assert done.returncode == status, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.long
def test_the_longest_request_is_the_one_that_just_starts(folder: Path) -> None:
    words = ("--gpu", "L4", "--vary=--max-model-len", "--exact", "vllm", "serve", "small")
    found = answer(folder, *words)
    (border,) = found["found"]
    use = border["trial"]["serving"]
    assert border["value"] == use["kv_tokens"] == use["max_model_len"]
    assert use["kv_cache_bytes"] == border["value"] * TOKEN_BYTES
    assert border["next_value"] == border["value"] + 1
    assert border["beyond"]["ends"].startswith("refuses to start, ")
    assert [trial["fits"] for trial in found["tried"]] == [False, True, False]
    assert found["next"] == f"vllm serve small --max-model-len {border['value']}"
    # Separate predictions agree: the value fits, and the next value does not.
    for value, status in ((border["value"], 0), (border["next_value"], 1)):
        own = ("--gpu", "L4", "vllm", "serve", "small", "--max-model-len", str(value))
        done = run(folder, "predict", "--quiet", *own)
        assert done.returncode == status, done.stderr
    again = run(folder, "fit", "--results", "kept.parquet", *words)
    assert again.returncode == 0
    assert again.stdout.startswith(f"L4: --max-model-len {border['value']}; ")
    told = again.stderr.splitlines()
    assert len(told) == 3
    assert all(line.endswith(" (kept)") for line in told)


def test_changes_are_tried_until_the_engine_serves(folder: Path) -> None:
    found = answer(folder, "--gpu", "RTX 3070", "vllm", "serve", "small", "--max-num-seqs", "16")
    own, changed = found["found"]
    assert own["beyond"]["ends"] == "runs out of memory while it loads the weights"
    assert changed["settings"] == {"--quantization": "fp8"}
    assert changed["trial"]["serving"]["weights_bytes"] == WEIGHTS_BYTES // 2
    assert changed["vary"] == "--max-model-len"
    assert 1 < changed["value"] < LONGEST
    assert found["why"].startswith("vllm serve small serves on RTX 3070 with --max-model-len ")


def test_the_least_parallelism_has_as_many_cards(folder: Path) -> None:
    words = ("--max-model-len", "1024", "--max-num-seqs", "16")
    found = answer(
        folder, "--gpu", "RTX 3070", "--vary=--tensor-parallel-size", "vllm", "serve", "small",
        *words,
    )  # fmt: skip
    (border,) = found["found"]
    assert (border["value"], border["next_value"]) == (2, 1)
    assert border["trial"]["gpus"] == 2
    limited = answer(
        folder, "--gpu", "RTX 3070", "--gpus", "1", "--vary=--tensor-parallel-size", "vllm",
        "serve", "small", *words, status=1,
    )  # fmt: skip
    assert limited["found"][0]["value"] is None


@pytest.mark.long
def test_a_sweep_shares_the_trials_and_names_the_cheapest_card(folder: Path) -> None:
    answer(folder, "--gpu", "L4", "vllm", "serve", "small", "--max-model-len", "4096")
    (folder / "prices.toml").write_text('L4 = 0.8\n"RTX 3090" = 0.4\nT4 = 0.2\n')
    done = run(
        folder, "sweep", "--vary", "gpu=T4,L4,RTX 3090", "--goal", "least-cost", "--json",
        "--prices", "prices.toml", "--results", "kept.parquet",
        "vllm", "serve", "small", "--max-model-len", "4096",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["reused"] == 1
    assert [row["fits"] for row in found["rows"]] == [None, True, True]
    assert "needs a card with bfloat16" in found["rows"][0]["error"]
    assert {row["samples_per_second"] for row in found["rows"]} == {None}
    text = run(
        folder, "sweep", "--vary", "gpu=L4,RTX 3090", "--goal", "least-cost",
        "--prices", "prices.toml", "--results", "kept.parquet",
        "vllm", "serve", "small", "--max-model-len", "4096",
    ).stdout  # fmt: skip
    assert text.startswith("vllm serve small: the cheapest is RTX 3090 (0.40 an hour); 2 of 2")
    tokens = found["rows"][1]["result"]["serving"]["kv_tokens"]
    assert f"the smallest card that fits is L4 ({tokens:,} tokens of KV cache" in text


@pytest.mark.long
def test_the_smallest_card_is_found_without_one(folder: Path) -> None:
    found = answer(folder, "vllm", "serve", "small", "--max-model-len", "1024")
    (border,) = found["found"]
    assert found["gpu"] is None
    assert border["vary"] == "gpu"
    assert border["trial"]["total_bytes"] > WEIGHTS_BYTES > border["beyond"]["total_bytes"] * 0.8
    for card, status in ((border["value"], 0), (border["next_value"], 1)):
        own = ("--gpu", card, "vllm", "serve", "small", "--max-model-len", "1024")
        assert run(folder, "predict", "--quiet", *own).returncode == status


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--within", "4GiB"], "--within, --apply, --plot, --view and --try are for scripts"),
        (["--vary=max-model-len"], "--vary is an option of vllm serve"),
        (["--start", "4"], "--start, --at-most and --multiple-of are for an option"),
        (["--gpu", "no such card"], "no such card"),
        (["--vary=--max-model-len", "--headroom", "lots"], "lots"),
        (["--results", "trials.csv"], ".parquet"),
    ],
)
def test_bad_input_is_one_line(folder: Path, words: list[str], told: str) -> None:
    done = run(folder, "fit", *words, "vllm", "serve", "small")
    assert done.returncode == 2
    assert done.stdout == ""
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_results_and_several_options_are_not_for_scripts(folder: Path) -> None:
    (folder / "script.py").write_text("")
    for words in (["--results", "a.parquet"], ["--vary=--a", "--vary=--b"]):
        done = run(folder, "fit", *words, "script.py")
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1
