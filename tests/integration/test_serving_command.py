"""Tests errors of `vllm serve` commands, and that a KV cache is recognized; needs no vLLM."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from plimsoll import predict
from tests.commands import run_plimsoll

if TYPE_CHECKING:
    from pathlib import Path

ENGINE = """
import torch

def allocate_kv_cache(blocks):
    return torch.zeros(blocks, 1 << 20, dtype=torch.uint8, device="cuda")

cache = allocate_kv_cache(64)
other = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
"""


def test_a_cache_of_keys_and_values_is_named_so(tmp_path: Path) -> None:
    script = tmp_path / "engine.py"
    script.write_text(ENGINE)
    found = predict(script, gpu="T4")
    assert found.by_category["kv_cache"] == 64 << 20
    assert found.serving is None


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed here")
@pytest.mark.parametrize(
    ("verb", "words"),
    [("predict", "`vllm serve` needs vLLM"), ("fit", "`vllm serve` needs vLLM")],
)
def test_without_the_engine_one_line_says_so(verb: str, words: str) -> None:
    done = run_plimsoll(verb, "--gpu", "H100", "vllm", "serve", "org/m")
    assert done.returncode == 2
    assert done.stdout == ""
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("option", ["--gpu=H100", "--json"])
def test_an_option_of_plimsolls_behind_the_engine_is_told_where_it_goes(option: str) -> None:
    done = run_plimsoll("predict", "vllm", "serve", "org/m", option)
    assert done.returncode == 2
    assert f"put it before: plimsoll … {option} vllm serve" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
