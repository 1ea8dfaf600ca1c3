"""Both tiers, regions, pausing and coming back on simulated GPUs, in real PyTorch scripts."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.simulated import run_program

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")

START = """
import warnings
import torch
import plimsoll
from plimsoll import InputError
MIB = 1 << 20
def empty(mib, device="cuda"):
    return torch.empty(mib * MIB, dtype=torch.uint8, device=device)
def free(device=0):
    return torch.cuda.mem_get_info(device)[0] // MIB
def shared():
    return plimsoll.memory_stats()["shared_allocated_bytes.current"] // MIB
"""

TRAIN = """
def training(width=2048, layers=4, place=False):
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers))).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    if place:
        plimsoll.place_optimizer(optimizer)
    def step():
        model(torch.randn(8, width, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return step, optimizer
"""


def plimsoll(
    verb: str, folder: Path, text: str, *options: str, status: int = 0
) -> subprocess.CompletedProcess[str]:
    path = folder / "script.py"
    path.write_text(START + text)
    done = subprocess.run(
        [sys.executable, "-m", "plimsoll", verb, *options, str(path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode == status, done.stderr
    return done


def simulate(
    folder: Path, text: str, *options: str, status: int = 0
) -> subprocess.CompletedProcess[str]:
    path = folder / "script.py"
    path.write_text(START + text)
    done = run_program(path, "--allocator", "elastic", *options, gpu="H100", folder=folder)
    assert done.returncode == status, done.stderr
    return done


# --- placing and spilling ------------------------------------------------------------------------


def test_a_region_has_memory_of_its_own_in_the_tier_that_it_prefers(tmp_path: Path) -> None:
    simulate(tmp_path, """
before = free()
with plimsoll.region("tables", prefer="shared"):
    table = empty(100)
with plimsoll.region("cache"):
    cache = empty(40)
tables, cached = plimsoll.region_uses("tables")[0], plimsoll.region_uses("cache")[0]
assert tables.allocated_bytes == tables.shared_reserved_bytes == 100 * MIB
assert (cached.allocated_bytes, cached.shared_reserved_bytes) == (40 * MIB, 0)
assert before - free() == 40 and shared() == 100
assert plimsoll.memory_stats()["num_spills"] == 0
del table
assert shared() == 0
""")  # fmt: skip


def test_what_spills_is_told_once_with_the_line(tmp_path: Path) -> None:
    done = simulate(tmp_path, """
first = empty(900)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    second = torch.empty(600 * MIB, dtype=torch.uint8, device="cuda")  # this line
    third = empty(100)
(warning,) = caught
assert warning.category is plimsoll.SpillWarning
lines = open(__file__).read().splitlines()
assert "# this line" in lines[warning.lineno - 1] and __file__ in str(warning.message)
assert shared() == 576
text = plimsoll.memory_summary()
assert "spilled: 2 requests found too little dedicated memory" in text, text
sizes = [s.get("shared_size", 0) for s in plimsoll.memory_snapshot()["segments"]]
assert sum(sizes) == 576 * MIB
print("done")
""", "--policy", "spill", "--dedicated", "1GiB", "--shared", "2GiB")  # fmt: skip
    assert done.stdout == "done\n"


def test_a_spill_warns_on_stderr(tmp_path: Path) -> None:
    done = simulate(tmp_path, "x = empty(2000)\n", "--policy", "spill", "--dedicated", "1GiB")
    assert "SpillWarning: GPU memory is spent: a request of 1.95 GiB" in done.stderr


def test_tiers_are_set_while_a_script_runs(tmp_path: Path) -> None:
    simulate(tmp_path, """
plimsoll.set_tiers(dedicated="1GiB", shared="1GiB")
first = empty(1000)
try:
    empty(200)
except torch.OutOfMemoryError as error:
    assert "1024.00 MiB" in str(error) or "1.00 GiB" in str(error), error
else:
    raise SystemExit("strict is the default")
torch.cuda.set_per_process_memory_fraction(1.0)  # the lower limit counts
warnings.simplefilter("ignore")
plimsoll.set_tiers(policy="spill")
second = empty(200)
assert shared() == 176
try:
    empty(1000)
except torch.OutOfMemoryError as error:
    assert "hared memory" in str(error), error
else:
    raise SystemExit("both are spent")
for wrong in (
    lambda: plimsoll.set_tiers(dedicated="9000GiB"),
    lambda: plimsoll.set_tiers(shared="9000GiB"),
    lambda: plimsoll.set_tiers(policy="hope"),
    lambda: plimsoll.set_tiers(rebalance="never"),
    lambda: plimsoll.set_tiers(device=1, policy="spill"),
):
    try:
        wrong()
    except InputError as error:
        assert len(str(error).splitlines()) == 1
    else:
        raise SystemExit("something was not refused")
""")  # fmt: skip


def test_installing_on_simulated_gpus_sets_the_tiers(tmp_path: Path) -> None:
    simulate(tmp_path, """
plimsoll.install(policy="spill", dedicated="1GiB", shared="1GiB")
warnings.simplefilter("ignore")
x = empty(1500)
assert shared() == 476
try:
    plimsoll.install("native")
except InputError as error:
    assert "--allocator native" in str(error), error
else:
    raise SystemExit("it is another one")
""")  # fmt: skip


@pytest.mark.parametrize("allocator", ["native", "uncached"])
def test_under_another_allocator_the_reason_is_said(tmp_path: Path, allocator: str) -> None:
    simulate(tmp_path, """
x = empty(10)
def enter():
    with plimsoll.region("r"):
        pass
for wrong in (enter, lambda: plimsoll.rebalance(), lambda: plimsoll.set_tiers(policy="spill"),
              lambda: plimsoll.place_optimizer(torch.optim.SGD([x.float().requires_grad_()]))):
    try:
        wrong()
    except InputError as error:
        assert "elastic allocator" in str(error), error
    else:
        raise SystemExit("something was not refused")
assert plimsoll.memory_stats()["shared_reserved_bytes.current"] == 0
assert "dedicated:" in plimsoll.memory_summary()
assert plimsoll.memory_snapshot()["segments"]
""", "--allocator", allocator)  # fmt: skip


# --- pausing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backup", "locked"), [("host", "freed"), ("disk", "64 * MIB"), ("drop", "0")]
)
def test_a_paused_region_gives_the_card_back(tmp_path: Path, backup: str, locked: str) -> None:
    simulate(tmp_path, f"""
import os
from plimsoll.engines.current import engine_of
with plimsoll.region("r"):
    tensors = [empty(m) for m in (1, 3, 64, 200)]
other = empty(50)
for _ in range(3):
    addresses, before = [t.data_ptr() for t in tensors], free()
    freed = plimsoll.pause("r", backup={backup!r}, directory={str(tmp_path)!r})
    assert 268 <= freed // MIB <= 272
    assert (free() - before) * MIB == freed and plimsoll.is_paused("r")
    assert plimsoll.region_uses("r")[0].paused_bytes == freed
    assert any(s.get("is_paused") for s in plimsoll.memory_snapshot()["segments"])
    assert f"paused: {{freed // MIB}}.00 MiB are off the card" in plimsoll.memory_summary()
    assert engine_of().host_reserved_bytes() == {locked}
    assert plimsoll.resume("r") == freed and free() == before
    assert [t.data_ptr() for t in tensors] == addresses
assert os.listdir({str(tmp_path)!r}) == ["script.py"]
""")  # fmt: skip


def test_pausing_checks_for_room_in_the_host_and_on_the_card(tmp_path: Path) -> None:
    simulate(tmp_path, """
with plimsoll.region("r"):
    x = empty(1200)
before = free()
try:
    plimsoll.pause("r")
except plimsoll.OutOfMemoryError as error:
    assert "no memory to pause" in str(error), error
else:
    raise SystemExit("the host has not as much")
assert free() == before and not plimsoll.is_paused("r")
plimsoll.pause("r", backup="disk")
wall = empty(500)
try:
    plimsoll.resume("r")
except plimsoll.OutOfMemoryError as error:
    assert "no memory to resume the region 'r'" in str(error), error
else:
    raise SystemExit("the card has not as much")
assert plimsoll.is_paused("r")
del wall
plimsoll.resume("r")
""", "--host-memory", "2GiB", "--dedicated", "1500MiB")  # fmt: skip


def test_a_full_disk_leaves_a_region_as_it_was(tmp_path: Path) -> None:
    simulate(tmp_path, """
import resource
with plimsoll.region("r"):
    x, y = empty(300, "cuda:0"), empty(10, "cuda:1")
before = free(0), free(1)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (100 * MIB, hard))
try:
    plimsoll.pause("r", backup="disk")
except InputError as error:
    assert str(error) == "cannot write the backup: File too large", error
else:
    raise SystemExit("the disk is full")
assert not plimsoll.is_paused("r") and (free(0), free(1)) == before
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
assert plimsoll.pause("r", backup="disk") == 310 * MIB
assert plimsoll.resume("r") == 310 * MIB
""", "--gpus", "2")  # fmt: skip


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    simulate(tmp_path, """
plimsoll.region("never entered")
with plimsoll.region("r"):
    x = empty(10)
with plimsoll.region("empty"):
    pass
plimsoll.pause("r")
def ask():
    with plimsoll.region("r"):
        empty(1)
for wrong, expected in (
    (lambda: plimsoll.pause("r"), "paused already"),
    (lambda: plimsoll.pause("empty"), "has no memory"),
    (lambda: plimsoll.pause("never entered"), "no region 'never entered'; known: empty, r"),
    (lambda: plimsoll.resume("empty"), "not paused"),
    (lambda: plimsoll.pause("r", backup="tape"), "unknown backup"),
    (lambda: plimsoll.region("r", prefer="disk"), "unknown tier"),
    (ask, "the region is paused"),
):
    try:
        wrong()
    except (InputError, RuntimeError) as error:
        assert expected in str(error), error
    else:
        raise SystemExit(f"not refused: {expected}")
plimsoll.resume("r")
try:
    plimsoll.pause("r", backup="disk", directory="/no/such/folder")
except InputError as error:
    assert "cannot write into /no/such/folder" in str(error), error
assert not plimsoll.is_paused("r")
""")  # fmt: skip


def test_all_gpus_are_paused_or_none(tmp_path: Path) -> None:
    simulate(tmp_path, """
from plimsoll.engines.current import current_engines
with plimsoll.region("r"):
    x, y = empty(10, "cuda:0"), empty(20, "cuda:1")
assert plimsoll.pause("r") == 30 * MIB
assert plimsoll.resume("r") == 30 * MIB
gpu = current_engines().machine.gpus[1]
before = free(0), free(1)
gpu.fail("unmap", times=1)
try:
    plimsoll.pause("r", backup="disk")
except RuntimeError as error:
    assert "pause a region" in str(error), error
else:
    raise SystemExit("the driver failed")
assert not plimsoll.is_paused("r") and (free(0), free(1)) == before
assert plimsoll.pause("r") == 30 * MIB
""", "--gpus", "2")  # fmt: skip


# --- back to the card ----------------------------------------------------------------------------

SPILLED = (
    TRAIN
    + """
warnings.simplefilter("ignore")
wall = empty(1000)
step, optimizer = training()
step()
assert shared() > 0
def make_room():
    global wall
    wall = None
    torch.cuda.empty_cache()
"""
)
SPILLING = ("--policy", "spill", "--dedicated", "1200MiB")


def test_what_spilled_comes_back_by_itself_after_a_step(tmp_path: Path) -> None:
    simulate(tmp_path, SPILLED + """
addresses = [p.data_ptr() for g in optimizer.param_groups for p in g["params"]]
step()
assert shared() > 0  # there is no room yet
make_room()
step()
assert shared() == 0
assert addresses == [p.data_ptr() for g in optimizer.param_groups for p in g["params"]]
""", *SPILLING)  # fmt: skip


def test_memory_comes_back_by_hand_where_that_is_wanted(tmp_path: Path) -> None:
    simulate(tmp_path, SPILLED + """
plimsoll.set_tiers(rebalance="manual")
make_room()
step()
some = shared()
assert some > 0
assert plimsoll.rebalance(at_most="1MiB") == 0
assert plimsoll.rebalance() // MIB >= some
assert shared() == 0
""", *SPILLING)  # fmt: skip


def test_coming_back_never_fails_a_program(tmp_path: Path) -> None:
    done = simulate(tmp_path, SPILLED + """
from plimsoll import _core
from plimsoll.engines.current import current_engines
make_room()
driver = current_engines().machine.gpus[0]._driver
some = shared()
driver.inject(_core.Call.copy, 0, 1, _core.Status.failed)
step()
step()
assert shared() == some  # it is not tried again
plimsoll.set_tiers(rebalance="step")
step()
print(shared())
""", *SPILLING)  # fmt: skip
    assert done.stdout == "0\n"
    assert done.stderr.startswith("plimsoll: spilled memory stays where it is: ")


def test_a_step_waits_for_nothing_when_nothing_can_come_back(tmp_path: Path) -> None:
    simulate(tmp_path, TRAIN + """
from plimsoll.tiers import rebalancing
step, optimizer = training()
step()
assert not steps._engines  # nobody looks under the policy strict
plimsoll.set_tiers(policy="spill")
calls = []
rebalance = steps._engines.copy()
(engine,) = rebalance.values()
class Watched:
    handle = engine.handle
    shared_allocated_bytes = 0
    def rebalance(self):
        calls.append(1)
steps._engines[engine.handle] = Watched()
step()
assert not calls
Watched.shared_allocated_bytes = 1
step()
assert calls == [1]
""")  # fmt: skip


# --- predictions ---------------------------------------------------------------------------------


def predict(folder: Path, text: str, *options: str) -> dict[str, Any]:
    chosen = ("--gpu", "H100", "--allocator", "elastic", "--json", *options)
    result: dict[str, Any] = json.loads(plimsoll("predict", folder, text, *chosen).stdout)
    return result


def test_a_placement_says_what_it_placed(tmp_path: Path) -> None:
    done = simulate(tmp_path, """
model = torch.nn.Linear(1024, 1024, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
placement = plimsoll.place_optimizer(optimizer)
print(placement)
model(torch.ones(8, 1024, device="cuda")).sum().backward()
optimizer.step()
print(placement)
placement.remove()
print(repr(placement))
""")  # fmt: skip
    assert done.stdout.splitlines() == [
        "AdamW: 0 bytes of state in shared memory, in 0 tensors, region 'optimizer'",
        "AdamW: 8.00 MiB of state in shared memory, in 2 tensors, region 'optimizer'",
        "<OptimizerPlacement AdamW: 8.00 MiB of state in shared memory, in 2 tensors, region "
        "'optimizer'; ended>",
    ]


def test_a_prediction_counts_an_optimizers_state_in_shared_memory(tmp_path: Path) -> None:
    state = 4 * 2 * 2048 * 2048 * 4
    text = (
        TRAIN
        + """
step, _ = training(place={place})
for _ in range(3):
    step()
"""
    )
    placed = predict(tmp_path, text.replace("{place}", "True"))
    assert placed["shared"]["peak_allocated_bytes"] == state
    assert placed["shared_used_bytes"] == placed["shared"]["peak_bytes"] == state
    assert placed["shared"]["num_spills"] == 0
    assert placed["shared_by_category"]["optimizer_state"] == state
    plain = predict(tmp_path, text.replace("{place}", "False"))
    assert plain["shared"] is None
    assert plain["by_category"]["optimizer_state"] >= state
    assert plain["step_peaks_bytes"][-1] == placed["step_peaks_bytes"][-1]


def test_a_prediction_counts_a_region_in_shared_memory(tmp_path: Path) -> None:
    found = predict(tmp_path, """
with plimsoll.region("tables", prefer="shared"):
    table = empty(100)
x = empty(50)
""")  # fmt: skip
    assert found["shared_used_bytes"] == 100 << 20
    assert found["shared"]["peak_dedicated_bytes"] == 50 << 20
    assert found["peak_allocated_bytes"] == 150 << 20


def test_a_snapshot_says_the_fragments_of_every_gpu(tmp_path: Path) -> None:
    done = simulate(tmp_path, """
kept = []
for gpu in range(2):
    blocks = [torch.empty(700 << 10, dtype=torch.uint8, device=f"cuda:{gpu}") for _ in range(9)]
    kept += blocks[:: 8 - gpu]
    del blocks
from plimsoll.engines.current import engine_of
wanted = {str(gpu): engine_of(gpu).fragments_bytes() for gpu in range(2)}
assert all(wanted.values()), wanted
for snapshot in (plimsoll.memory_snapshot(), torch.cuda.memory._snapshot()):
    assert snapshot["allocator_settings"]["fragments_bytes"] == wanted
    cards = snapshot["allocator_settings"]["gpus"]
    assert [card["device"] for card in cards] == [0, 1]
    assert {card["name"] for card in cards} == {"H100"}
""", "--gpus", "2")  # fmt: skip
    assert done.stdout == ""
