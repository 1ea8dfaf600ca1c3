"""Tests the lines with which `plimsoll run --simulate` ends."""

from __future__ import annotations

import json
import re
from functools import partial
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from plimsoll.base.torch_environment import WITHOUT_CACHE
from plimsoll.base.units import MiB, format_size
from plimsoll.engine.gpus.profiles import gpu_profile
from tests.commands import run_plimsoll

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
simulate = partial(run_plimsoll, "run", "--simulate", "H100")


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "script.py"
    path.write_text("import torch\n" + dedent(text).lstrip())
    return path


# --- values that plimsoll made up ----------------------------------------------------------------

COPIES = """
host = torch.full((500, 500), 3.0)
back = host.to("cuda").cpu()
assert host[0, 0] == back[-1, -1] == 3
assert back.sum().item() == 3 * 500 * 500
numbers = torch.arange(250_000.0)
assert numbers.cuda().cpu()[-5].item() == numbers.numpy()[-5]
for n in (500, 2000, 5000):
    assert torch.full((n, n), 3.0, device="cuda")[1, 1].item() == 3, n
"""


@needs_no_gpu
def test_copies_keep_their_values(tmp_path: Path) -> None:
    done = simulate(written(tmp_path, COPIES))
    assert (done.returncode, done.stdout) == (0, "")
    assert re.fullmatch(r"plimsoll: GPU 0, the native allocator: [^\n]*\n", done.stderr)


MAKES_UP = """
large = torch.ones(16384, 16384, device="cuda")
product = large @ large
print(product[0, 0].item())
"""


@needs_no_gpu
def test_a_read_of_a_made_up_value_is_named(tmp_path: Path) -> None:
    done = simulate(written(tmp_path, MAKES_UP).name, folder=tmp_path)
    assert done.returncode == 0
    assert done.stderr.splitlines()[1:] == [
        "plimsoll: script.py:4 <module> reads a value that plimsoll made up instead of computing "
        "it; --values real computes it"
    ]


@needs_no_gpu
def test_the_first_of_several_reads_is_named(tmp_path: Path) -> None:
    script = written(tmp_path, MAKES_UP + "print(product[1].sum().tolist())\n" * 2)
    file = tmp_path / "run.json"
    done = simulate("--json", file, script.name, folder=tmp_path)
    assert done.stderr == (
        "plimsoll: 3 places read values that plimsoll made up instead of computing them, first "
        "script.py:4 <module>; --values real computes them\n"
    )
    told = json.loads(file.read_text())
    assert (told["made_up_reads"], told["first_made_up_read"]) == (3, "script.py:4 <module>")


HOST_ONLY = """
large = torch.full((40_000, 40_000), 2.0)  # 6 GiB: beyond the budget of any run
large.{read}
"""


@needs_no_gpu
@pytest.mark.parametrize(
    "read", ["sum().item()", "numpy()", "flatten()[7].item()", "flatten()[:7].tolist()"]
)
def test_a_host_tensor_without_contents_is_named(tmp_path: Path, read: str) -> None:
    done = simulate(written(tmp_path, HOST_ONLY.format(read=read)).name, folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == (
        "plimsoll: script.py:3 <module> reads a value that plimsoll made up instead of computing "
        "it; --values real computes it\n"
    )


@needs_no_gpu
def test_a_constant_of_any_size_is_known(tmp_path: Path) -> None:
    script = """
    large = torch.full((40_000, 40_000), 2.5, device="cuda")
    copy = large.clone().half()
    assert large[9, 9].item() == copy[7, 8:10].cpu()[0].item() == 2.5
    difference = large - large  # 0, unless a number is infinite
    assert difference[0, 0].item() == 0
    rounded = torch.full((40_000, 40_000), 0.1, device="cuda").half().float()
    assert rounded[3, 3].item() == torch.tensor(0.1).half().float().item() != 0.1
    """
    done = simulate(written(tmp_path, script))
    assert done.returncode == 0
    assert "script.py:6 <module> reads a value that plimsoll made up" in done.stderr


# --- who is meant --------------------------------------------------------------------------------

TWO = """
import subprocess, sys
own = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
if len(sys.argv) == 1:
    alone = torch.cuda.mem_get_info()[0]
    subprocess.run([sys.executable, __file__, str(alone)], check=True)
    assert torch.cuda.mem_get_info()[0] == alone  # the other process has ended
else:
    print(int(sys.argv[1]) - torch.cuda.mem_get_info()[0])
"""


@needs_no_gpu
def test_two_processes_share_a_card(tmp_path: Path) -> None:
    script, file = written(tmp_path, TWO), tmp_path / "run.json"
    done = simulate(script)
    assert done.returncode == 0
    assert int(done.stdout) > 300 * MiB
    second, first = done.stderr.splitlines()
    assert re.match(r"plimsoll: process \d+, GPU 0, the native allocator: ", second)
    assert first.startswith("plimsoll: GPU 0, the native allocator: ")
    assert first.endswith(" (by 2 processes)")
    assert simulate("--json", file, script).returncode == 0
    for line in file.read_text().splitlines():
        told = json.loads(line)
        assert told["card_processes"] == 2
        assert told["card_peak_bytes"] > 2 * 300 * MiB > told["peak_reserved_bytes"]


@needs_no_gpu
def test_a_card_that_two_processes_fill_is_full(tmp_path: Path) -> None:
    script = TWO.replace("300 <<", "900 <<")
    done = run_plimsoll("run", "--simulate", "H100", "--dedicated", "1200MiB",
                        written(tmp_path, script))  # fmt: skip
    assert done.returncode == 1
    assert "OutOfMemoryError" in done.stderr


@needs_no_gpu
def test_a_context_alone_has_a_line(tmp_path: Path) -> None:
    done = simulate("--gpus", "2", written(tmp_path, "torch.cuda.synchronize(1)\n"))
    context = format_size(gpu_profile("H100").context_with(()))
    assert done.stderr == (
        "plimsoll: GPU 1, the native allocator: peak allocated 0 bytes, reserved 0 bytes, "
        f"in use on the card {context}\n"
    )


# --- variables of the environment ----------------------------------------------------------------

UNCACHED = """
import os
{setting}
x = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
print(torch.cuda.memory_allocated(), torch.cuda.max_memory_reserved())
del x
free = torch.cuda.mem_get_info()[0]
y = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
print((free - torch.cuda.mem_get_info()[0]) >> 20)
"""


@needs_no_gpu
@pytest.mark.parametrize("is_set_by_script", [False, True])
def test_a_forbidden_cache_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_set_by_script: bool
) -> None:
    setting = ""
    if is_set_by_script:
        setting = 'os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"'
    else:
        monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    script = written(tmp_path, UNCACHED.format(setting=setting))
    done = simulate(script)
    assert (done.returncode, done.stdout) == (0, "0 0\n4\n")  # in granules of 2 MiB
    account, why = done.stderr.splitlines()
    assert account.startswith("plimsoll: GPU 0, the uncached allocator: peak allocated 3.00 MiB")
    assert why == f"plimsoll: {WITHOUT_CACHE}"
    predicted = run_plimsoll("predict", "--gpu", "H100", "--json", script)
    told = json.loads(predicted.stdout.splitlines()[-1])
    assert told["allocator"] == "uncached"
    assert WITHOUT_CACHE in {each["what"] for each in told["assumptions"]}


@needs_no_gpu
def test_a_plan_needs_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    done = simulate("--allocator", "elastic", "--plan", "plan.json", written(tmp_path, ""))
    assert done.returncode == 2
    assert done.stderr.startswith("plimsoll: PYTORCH_NO_CUDA_MEMORY_CACHING=1 leaves no request")


@needs_no_gpu
@pytest.mark.parametrize(("visible", "is_told"), [("1", True), ("0,1", False), ("", False)])
def test_cards_that_stay_visible_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str, is_told: bool
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    script = written(tmp_path, "torch.cuda.synchronize()\nprint(torch.cuda.device_count())\n")
    done = simulate("--gpus", "2", script)
    assert done.stdout == "2\n"
    told = (
        "plimsoll: CUDA_VISIBLE_DEVICES=1 hides no simulated GPU: the script saw 2, as --gpus says"
    )
    assert done.stderr.splitlines()[1:] == ([told] if is_told else [])
