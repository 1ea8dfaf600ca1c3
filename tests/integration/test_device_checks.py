"""Tests device-side asserts: errors are those of a real GPU, and name the line of the call."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest

from plimsoll.torch.simulated.library import UNDECIDED_CHECK
from tests.apart import ROOT
from tests.commands import run_plimsoll
from tests.simulated import on_simulated_gpus, simulate

torch = pytest.importorskip("torch")

MANY = 3_000_000_000  # elements: too many for plimsoll to compute their values
MEASURED = ROOT / "tests" / "data" / "device_checks.csv"
"""A table of expressions. A row has an expression, and the error that it raised, if any.

Each expression ran in a new process on an H100, with PyTorch 2.11.
"""


def _end_of(expression: str) -> str:
    """Runs an expression, and then two CUDA calls, in a new process. Returns their errors.

    The result is a JSON list. For the expression and for each call it has the type and the text of
    the error, or two empty strings if there is no error. The result is "" if the process dies.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "nn": torch.nn}
        names |= {"d": "cuda", "x": torch.arange(3.0, device="cuda")}
        names["X"] = torch.arange(16.0, device="cuda").reshape(4, 4)
        ends: list[list[str]] = []
        for step in (expression, "torch.ones(3, device=d) + 1", "torch.cuda.synchronize()"):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    eval(step, names)
                ends.append(["", ""])
            except Exception as error:
                ends.append([type(error).__name__, str(error)])
        os.write(write, json.dumps(ends).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return told


@pytest.mark.long
@on_simulated_gpus(gpu="H100")
def test_programs_end_as_on_an_h100() -> None:
    different = []
    with MEASURED.open() as file:
        for row in csv.DictReader(file):
            (error, text), *later = json.loads(_end_of(row["expression"]) or '[["died", ""]]')
            fails_later = {each for each, _ in later}
            expected = {"AcceleratorError"} if row["error"] == "AcceleratorError" else {""}
            as_measured = error == row["error"] and row["message"][:60] in text
            if not as_measured or fails_later != expected:
                different.append((row["name"], row["error"], row["message"], error, text[:150]))
    assert not different, "\n".join(map(str, different))


@on_simulated_gpus()
def test_the_error_names_index_bound_and_operation() -> None:
    table = torch.nn.Embedding(1000, 8).cuda()
    with pytest.raises(torch.AcceleratorError, match="device-side assert triggered") as failure:
        table(torch.tensor([[1, 1000]], device="cuda"))
    second = str(failure.value).splitlines()[1]
    assert second == (
        "an index is 1000, outside the embedding, which has 1000 rows: 0 to 999 (aten::embedding)"
    )
    with pytest.raises(RuntimeError, match=r"The GPU failed before: an index is 1000"):
        torch.cuda.synchronize()
    with pytest.raises(RuntimeError):
        torch.cuda.mem_get_info()
    with pytest.raises(RuntimeError):
        table.weight.sum().item()
    with pytest.raises(RuntimeError):
        torch.cuda.Event().record()


@on_simulated_gpus("--values", "none")
def test_an_index_is_known_by_the_range_of_a_large_tensor_of_the_host() -> None:
    ids = torch.arange(2, 1002).repeat(1000)
    table = torch.ones(1000, 2, device="cuda")
    on_device = ids.cuda()
    assert not torch.ops.plimsoll.is_known(on_device)
    with pytest.raises(torch.AcceleratorError, match="an index is 1001"):
        table[on_device]


@on_simulated_gpus("--values", "none")
def test_a_part_of_a_range_need_not_reach_its_ends() -> None:
    ids = torch.arange(2, 1002).repeat(1000).cuda()
    table = torch.ones(1000, 2, device="cuda")
    assert table[ids[:100]].shape == (100, 2)
    ids[: ids.numel() // 2] = 5
    assert table[ids].shape == (ids.numel(), 2)


@on_simulated_gpus()
def test_random_indices_beyond_a_table_surely_hit_it() -> None:
    ids = torch.randint(0, 2000, (MANY,), device="cuda")
    with pytest.raises(torch.AcceleratorError, match="outside dimension 0, whose size is 1000"):
        torch.ones(1000, device="cuda").index_select(0, ids)


@on_simulated_gpus()
def test_random_indices_within_a_table_are_accepted() -> None:
    ids = torch.randint(0, 1000, (MANY,), device="cuda")
    assert torch.ones(1000, device="cuda").index_select(0, ids).shape == (MANY,)


@on_simulated_gpus()
def test_targets_that_are_ignored_are_accepted() -> None:
    targets = torch.full((64,), 255, device="cuda")
    targets[0] = 3
    scores = torch.zeros(64, 10, device="cuda", requires_grad=True)
    loss = torch.nn.functional.cross_entropy(scores, targets, ignore_index=255)
    loss.backward()
    assert loss.isfinite().item()


@on_simulated_gpus()
def test_what_a_cpu_refuses_and_a_gpu_does_not_goes_on() -> None:
    (torch.tensor([1], device="cuda") // torch.tensor([0], device="cuda")).sum()
    torch.cuda.synchronize()


PROGRAM = """\
import torch
table = torch.nn.Embedding(1000, 8).cuda()
ids = torch.tensor([1, 1000], device="cuda")
{call}
print("goes on")
"""


def _predicted(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(text)
    return run_plimsoll("predict", script, *options)


def test_predict_says_first_which_line_a_gpu_would_end(tmp_path: Path) -> None:
    done = _predicted(tmp_path, PROGRAM.format(call="table(ids)"))
    assert done.returncode == 2
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(
        r"plimsoll: \S*train.py fails on a GPU at \S*train.py:4 <module>: an index is 1000, "
        r"outside the embedding, which has 1000 rows: 0 to 999 \(aten::embedding\); "
        r"a GPU calls this a device-side assert",
        last,
    )


def test_a_program_that_catches_the_error_does_not_fit(tmp_path: Path) -> None:
    call = "try: table(ids)\nexcept RuntimeError: pass"
    done = _predicted(tmp_path, PROGRAM.format(call=call))
    assert done.returncode == 2
    assert "fails on a GPU at" in done.stderr.splitlines()[-1]


def test_made_up_values_out_of_range_are_said_and_raise_nothing(tmp_path: Path) -> None:
    call = (
        "big = torch.empty(30_000, 50_000, device='cuda').argmax(1); table(big); table.zero_grad()"
    )
    done = _predicted(tmp_path, PROGRAM.format(call=call), "--json")
    assert done.returncode == 0, done.stderr
    said = [each["what"] for each in json.loads(done.stdout)["assumptions"]]
    assert UNDECIDED_CHECK in said


def test_a_captured_graph_checks_nothing_while_it_is_captured() -> None:
    text = """
import torch
x = torch.zeros(4, dtype=torch.long, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = torch.ones(8, device="cuda")[x]
graph.replay()
"""
    assert simulate(text).returncode == 0
