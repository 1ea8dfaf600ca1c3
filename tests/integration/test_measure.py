"""Tests that a simulated card can be measured, and that predictions use its figures."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from plimsoll.engine.gpus.card_files import CONVOLUTION, FOLDER_VARIABLE, read_card
from plimsoll.engine.gpus.profiles import gpu_profile
from plimsoll.prediction.assumed import WORKSPACES
from tests.commands import run_plimsoll
from tests.simulated import PROGRAMS, on_simulated_gpus, running_simulation

torch = pytest.importorskip("torch")

SCRIPT = PROGRAMS / "measured" / "uneven.py"


def plimsoll(*arguments: str, cards: Path) -> subprocess.CompletedProcess[str]:
    return run_plimsoll(*arguments, environment={FOLDER_VARIABLE: str(cards)})


def predicted(gpu: str, cards: Path) -> dict[str, Any]:
    done = plimsoll("predict", "--gpu", gpu, "--json", str(SCRIPT), cards=cards)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.long
def test_predictions_for_a_card_that_was_measured_are_those_of_the_card(tmp_path: Path) -> None:
    done = plimsoll(
        *("measure", "--simulate", "A100", "--name", "Pretended 40GB", str(SCRIPT)), cards=tmp_path
    )
    assert done.returncode == 0, done.stderr
    path = tmp_path / "Pretended-40GB.toml"
    assert done.stdout.startswith("Pretended 40GB is measured, in ")
    assert f"predictions for it use {path} from now on" in done.stdout, done.stdout
    assert "63 of 63 are as predicted" in done.stdout
    found, real = read_card(path), gpu_profile("A100")
    assert found.card["total_bytes"] == real.total_bytes
    assert found.card["multiprocessors"] == real.multiprocessors
    assert found.card["tensor_flops"] == pytest.approx(real.tensor_flops, rel=0.1)
    assert found.card["memory_bandwidth_bytes_per_s"] == pytest.approx(
        real.memory_bandwidth_bytes_per_s, rel=0.1
    )

    before, after = predicted("A100", tmp_path), predicted("Pretended 40GB", tmp_path)
    assert before["peak_reserved_range_bytes"], "nobody has measured an A100"
    assert after["peak_reserved_range_bytes"] is None
    for figure in ("peak_allocated_bytes", "peak_reserved_bytes"):
        assert after[figure] == before[figure]
    assert after["convolutions"] == before["convolutions"]


def test_where_there_is_no_card_a_line_says_so(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    done = plimsoll("measure", cards=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "plimsoll: PyTorch sees no GPU here, so there is no card to measure; "
        "`plimsoll measure --simulate H100` shows what the command prints"
    ]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--name", "GPU"), "the name 'GPU' has no letters or digits of its own"),
        (("--name", "A:1"), "the name 'A:1' has a colon, after which --gpu takes a size"),
        (("--out", "no/where.toml"), "no/where.toml: cannot be written: No such file or directory"),
        (
            ("--simulate", "NOPE"),
            "unknown GPU 'NOPE'; no known name is near; `plimsoll gpus`",
        ),
    ],
)
def test_bad_options_are_refused_at_once(
    options: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    simulate = () if "--simulate" in options else ("--simulate", "H100")
    done = plimsoll("measure", *simulate, *options, cards=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"plimsoll: {why}")
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_script_that_is_none_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    done = plimsoll("measure", "--simulate", "H100", "nothing.py", cards=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "plimsoll: nothing.py: no such file\n"


@on_simulated_gpus(gpu="H100")
def test_a_convolution_in_words_is_the_same_convolution_again() -> None:
    from plimsoll.integrations.measuring.convolutions import common_convolutions, workspaces

    simulation = running_simulation()

    def ran() -> set[str]:
        return set(simulation.library.convolutions())

    def run(layer: Any, *sizes: int, **kinds: Any) -> None:
        layer = layer.cuda().to(**kinds)
        layer(torch.zeros(*sizes, device="cuda").to(**kinds)).sum().backward()

    nn = torch.nn
    run(nn.Conv1d(6, 8, 5, stride=3, padding=2, dilation=2), 4, 6, 50)
    run(nn.Conv2d(6, 8, (1, 5), padding=(0, 2), groups=2), 4, 6, 20, 30, dtype=torch.float16)
    run(nn.Conv2d(4, 8, 3, stride=(2, 1)), 4, 4, 20, 30, memory_format=torch.channels_last)
    run(nn.Conv3d(2, 4, (1, 3, 3)), 2, 2, 5, 9, 9, dtype=torch.bfloat16)
    run(nn.ConvTranspose1d(4, 6, 4, stride=2, output_padding=1), 3, 4, 20)
    run(nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), 3, 4, 9, 7)
    words = ran()
    assert len(words) == 6
    assert all(map(CONVOLUTION.fullmatch, words))
    again = {each: workspaces(each) for each in words}
    assert None not in again.values()
    assert ran() == words
    common = common_convolutions(thorough=False)[:20]
    for each in common:
        workspaces(each)
    assert ran() == {*words, *common}


@on_simulated_gpus(gpu="H100")
def test_what_was_measured_goes_before_every_table() -> None:
    simulation = running_simulation()

    def peak() -> int:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        result = layer(x)
        del result
        return int(torch.cuda.memory_stats()["requested_bytes.all.peak"] - before)

    layer, x = torch.nn.Conv2d(3, 8, 3, bias=False).cuda(), torch.zeros(2, 3, 9, 9, device="cuda")
    results = 2 * 8 * 7 * 7 * 4
    with torch.no_grad():
        peak()
        words, *_ = simulation.library.convolutions()
        for bytes_ in (0, 1 << 20, 7 << 20):
            simulation.library.set_convolutions(0, {words: (bytes_, 0, 0)}, {})
            assert peak() == bytes_ + results
        # another device's table, which has no effect here
        simulation.library.set_convolutions(1, {words: (9 << 20, 0, 0)}, {})
        assert peak() == (7 << 20) + results


@on_simulated_gpus(gpu="H100")
def test_a_search_takes_what_was_measured_and_then_what_its_fastest_plan_took() -> None:
    simulation = running_simulation()
    torch.backends.cudnn.benchmark = True
    size, none = (1, 3, 11, 13), (0, 0, 0, 0)
    words = "float32 1x3x11x13 by 5x3x3x3 stride 1x1 padding 0x0 dilation 1x1 groups 1"
    searches = ((9 << 20, 1 << 20, 2 << 20, 3 << 20), none, none)
    simulation.library.set_convolutions(0, {}, {words: searches})
    layer, x = torch.nn.Conv2d(3, 5, 3, bias=False).cuda(), torch.zeros(size, device="cuda")
    taken = []
    with torch.no_grad():
        for _ in range(3):
            torch.cuda.reset_peak_memory_stats()
            result = layer(x)
            stats = torch.cuda.memory_stats()
            del result
            taken.append(stats["requested_bytes.all.peak"] - stats["requested_bytes.all.current"])
    assert words in simulation.library.convolutions()
    assert taken == [9 << 20, 2 << 20, 2 << 20]
    said = {simulation.library.name(each.what) for each in simulation.library.assumptions()}
    assert WORKSPACES[2] in said
