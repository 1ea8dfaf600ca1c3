"""Tests changes that make a script fit: applies them, and predicts the changed script."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from plimsoll import InputError
from plimsoll.base.units import GiB, MiB
from plimsoll.engine.gpus.profiles import gpu_profile
from plimsoll.prediction.fitting.within import fit_within
from plimsoll.prediction.predict import predict
from tests.commands import run_plimsoll
from tests.recordings import ROOT
from tests.simulated import PROGRAMS

pytest.importorskip("torch")

TRAIN_GPT = ROOT / "examples" / "train_gpt.py"
LAYERS = PROGRAMS / "prediction" / "two_layers.py"
ONE_LAYER = """
import torch
model = torch.nn.Linear(4096, 4096, bias=False, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(8, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""  # the layer has 64 MiB; an optimizer that is not fused takes another 64 MiB for temporaries
SCATTERED = """
import random, torch
from plimsoll.engine.current import allocator_name
if allocator_name() == "elastic":
    raise RuntimeError("it does not run under this one")
chance, kept = random.Random(1), []
for step in range(300):
    kept.append(torch.empty(chance.randrange(1, 60) << 20, dtype=torch.uint8, device="cuda"))
    if len(kept) > 60:
        del kept[chance.randrange(60)]
"""
ACCUMULATES = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--accum", type=int, default=2)
options = parser.parse_args()
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(3)]).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for i in range(4):
    x = torch.randn(options.batch_size * 64, 2048, device="cuda")
    (model(x).square().mean() / options.accum).backward()
    if (i + 1) % options.accum == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
SMALL = ["--depth", "2", "--width", "256", "--batch-size", "4"]


@pytest.mark.long
def test_a_run_with_too_few_steps_of_the_optimizer_is_no_plan(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ACCUMULATES)
    before = predict(script, gpu="T4")
    within = before.context_bytes + before.peak_allocated_bytes * 7 // 8
    plan = fit_within(script, within=within, gpu="T4")
    failed = {" + ".join(each.short): each.failure for each in plan.tried if each.failure}
    assert any(
        "batch in 2 parts" in name and "1 step of the optimizer, too few to compare" in failure
        for name, failure in failed.items()
    )
    assert not any("batch in" in change.short for change in plan.plan)


@pytest.mark.long
def test_a_plan_fits_and_its_copy_is_predicted_to_take_the_same_bytes(tmp_path: Path) -> None:
    before = predict(TRAIN_GPT, SMALL, gpu="T4")
    within = before.context_bytes + before.peak_allocated_bytes * 3 // 4 // MiB * MiB
    copy = tmp_path / "copy.py"
    page = tmp_path / "out.html"
    plan = fit_within(TRAIN_GPT, SMALL, within=within, gpu="T4", apply=copy, view=page)
    assert plan.fits
    assert plan.plan
    assert plan.device_used_bytes <= within < plan.as_it_is_bytes
    # Under a limit, plimsoll assumes that the CUDA context is as large as in a training step.
    outside = gpu_profile("T4").context_bytes - before.context_bytes
    assert plan.as_it_is_bytes == before.device_used_bytes + outside
    assert plan.simulations <= 15
    first = str(plan).splitlines()[0]
    assert first.startswith(f"{TRAIN_GPT} fits in ")
    assert f" with {plan.plan[0].short}" in first
    assert plan.host_peak_bytes is not None
    words = shlex.split(plan.command)
    assert words[words.index(str(copy)) + 1 :] == SMALL
    assert plan.before is not None
    assert plan.after is not None
    assert max(plan.after.reserved_bytes) < max(plan.before.reserved_bytes)
    for name in ("train_gpt.py unchanged", "train_gpt.py with the plan"):
        assert name in page.read_text()
    again = predict(
        copy, SMALL, gpu="T4", allocator=plan.allocator,  # type: ignore[arg-type]
        conf=plan.conf, dedicated=within - before.context_bytes,
    )  # fmt: skip
    assert again.fits
    assert again.peak_reserved_bytes == plan.peak_reserved_bytes
    assert again.device_used_bytes == plan.device_used_bytes


@pytest.mark.long
def test_a_script_that_fits_as_it_is_needs_no_change() -> None:
    plan = fit_within(TRAIN_GPT, SMALL, gpu="T4")
    assert (plan.fits, plan.plan, plan.patch, plan.simulations) == (True, [], "", 1)
    assert fit_within(TRAIN_GPT, SMALL, gpu="T4", headroom="2GiB").within_bytes == (
        plan.within_bytes - 2 * GiB
    )


def test_what_no_card_has_is_refused() -> None:
    with pytest.raises(InputError, match="is more than T4 has for the program"):
        fit_within(TRAIN_GPT, gpu="T4", within="100GiB")
    with pytest.raises(InputError, match="CUDA's context takes"):
        fit_within(TRAIN_GPT, gpu="T4", within="64MiB")
    with pytest.raises(InputError, match="may use only 0 bytes"):
        fit_within(TRAIN_GPT, gpu="T4", within="1GiB", headroom="50%")


@pytest.mark.long
def test_a_script_that_fails_under_another_allocator_does_not_fit_all_the_same(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCATTERED)
    plan = fit_within(script, within="1GiB", gpu="T4")
    assert (plan.fits, plan.allocator, plan.simulations) == (False, "elastic", 2)
    assert plan.within_bytes < plan.floor_bytes < plan.as_it_is_bytes


fitted = partial(run_plimsoll, "fit")


@pytest.mark.long
def test_the_run_is_drawn_below_the_answer_without_colour_in_a_pipe() -> None:
    done = fitted("--plot", "--gpu", "T4", LAYERS, "--", "4096")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{LAYERS} fits in ")
    place = next(i for i, line in enumerate(lines) if line.startswith("T4, unchanged: memory over"))
    assert max(map(len, lines[place:])) == 100


@pytest.mark.long
def test_what_cannot_be_is_said_before_the_first_run(tmp_path: Path) -> None:
    page = tmp_path / "out.html"
    page.write_text("mine")
    copy = tmp_path / "copy.py"
    copy.write_text("mine")
    for options, problem in (
        (("--plot", "--json"), "--plot is for people"),
        (("--view", page), "exists already and is not overwritten; --force overwrites it"),
        (("--apply", copy), "exists already and is not overwritten; --force overwrites it"),
        (("--view", "out.txt"), "a page is a .html or .htm file"),
        (("--view", page, "--gpu", "T4", "--gpu", "H100"), "--view is for one card"),
        (("--plot", "--vary=--steps"), "are for changes, and not with --vary"),
    ):
        done = fitted(*options, LAYERS)
        assert (done.returncode, done.stdout) == (2, "")
        assert problem in done.stderr
    assert page.read_text() == copy.read_text() == "mine"


@pytest.mark.long
def test_an_interrupted_search_shows_the_best_so_far_and_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(ONE_LAYER)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    within = gpu_profile("T4").context_bytes // MiB + 300
    command = [sys.executable, "-m", "plimsoll", "fit", "--gpu", "T4", f"--within={within}MiB"]
    search = subprocess.Popen(
        [*command, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"TMPDIR": str(temporary)}, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert search.stderr is not None
    heard = []
    for line in search.stderr:
        heard.append(line)
        if re.match(r"(?!the unchanged script).*: fits", line):
            break
    search.send_signal(signal.SIGINT)
    shown, errors = search.communicate(timeout=120)
    assert search.returncode == 130, [*heard, errors]
    assert shown.startswith(f"{script} fits in "), [*heard, errors]
    assert "The search was interrupted; there may be better plans." in shown
    assert list(temporary.iterdir()) == []
    assert _processes_with(f"TMPDIR={temporary}") == []


def _processes_with(variable: str) -> list[str]:
    """Returns the command lines of the processes whose environment has `variable` (NAME=VALUE)."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (path / "environ").read_bytes().split(b"\0"):
                found.append((path / "cmdline").read_text())
        except OSError:  # the process has ended, or belongs to another user
            continue
    return found
