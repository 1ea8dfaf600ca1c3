"""Checks, on simulated GPUs, what articles say about PyTorch's memory.

Programs in `tests/programs/statements` show each statement. They print lines of `name: value`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from plimsoll.base.errors import InputError
from plimsoll.base.units import MiB
from plimsoll.engine.gpus.profiles import gpu_profile
from plimsoll.recordings.events import Action
from plimsoll.recordings.reading import read_recording
from tests.simulated import PROGRAMS as ALL_PROGRAMS
from tests.simulated import simulate, summaries

pytest.importorskip("torch")

PROGRAMS = ALL_PROGRAMS / "statements"
CARD = "V100-16GB"
SPENT = (
    "half of the host's memory, which GPUs may share, is spent; --host-memory simulates a host "
    "with more"
)


@cache
def output(program: str, *options: str, gpu: str = CARD) -> str:
    done = simulate(PROGRAMS / f"{program}.py", *options, gpu=gpu)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown(program: str, *options: str, gpu: str = CARD) -> dict[str, str]:
    """Returns a program's output: each name with its value."""
    lines = output(program, *options, gpu=gpu).splitlines()
    return dict(line.split(": ", 1) for line in lines if ": " in line)


def listed(program: str, name: str, *options: str) -> list[str]:
    """Returns all values that a program printed under one name."""
    lines = output(program, *options).splitlines()
    return [line.removeprefix(f"{name}: ") for line in lines if line.startswith(f"{name}: ")]


# --- memory is taken when needed, and kept --------------------------------------------------------


def test_cuda_starts_with_the_first_tensor() -> None:
    figures = shown("first_tensor")
    assert (figures["started before"], figures["started after"]) == ("False", "True")
    assert figures["before"] == "0 0"


def test_a_small_tensor_is_cut_from_a_larger_segment() -> None:
    figures = shown("first_tensor")
    assert figures["4 MiB"] == f"{4 * MiB} {20 * MiB}"
    assert figures["two tensors of 4 MB"] == f"{2 * 4_000_256} {20 * MiB}"


def test_a_large_tensor_has_a_segment_of_its_size() -> None:
    """An article guesses a segment of 512 MB for a tensor of 400 MB (381.5 MiB).

    In fact the segment has 382 MiB, and the tensor takes it all.
    """
    allocated, reserved = shown("first_tensor")["and one of 400 MB"].split()
    assert int(allocated) == 2 * 4_000_256 + 382 * MiB
    assert int(reserved) == (20 + 382) * MiB


def test_reserved_stays_while_allocated_falls_and_the_driver_sees_reserved() -> None:
    figures = shown("kept_memory")
    assert figures["at first"] == "0 0 0"
    assert figures["created"] == "400 400 400"
    assert figures["deleted"] == "0 400 400"


def test_later_tensors_use_the_kept_memory() -> None:
    figures = shown("kept_memory")
    assert figures["at the same address"] == "True"
    assert figures["half of it"] == "200 400 400"
    assert figures["both halves"] == "400 400 400"
    assert figures["further calls of the driver"] == "0"


def test_empty_cache_leaves_memory_to_others() -> None:
    assert shown("kept_memory")["emptied"] == "0 0 0"


def test_empty_cache_leaves_tensors_alone() -> None:
    figures = shown("kept_memory")
    # The 42 MiB are a segment of 2 MiB, and 40 MiB of code that the first kernel loads.
    assert figures["emptied around a small one"] == "0 2 42"
    assert figures["it holds"] == "[0, 1, 2, 3]"


def test_a_tensor_in_a_segment_keeps_all_of_it_unless_it_is_expandable() -> None:
    assert shown("kept_memory")["emptied around half"] == "200 400 400"
    expandable = shown("kept_memory", "--conf", "expandable_segments:True")
    assert expandable["emptied around half"] == "200 200 200"


def test_a_loop_asks_the_driver_once() -> None:
    assert shown("tensors_in_a_row")["calls, kept"] == "1"


@pytest.mark.long
def test_without_a_cache_a_loop_asks_the_driver_each_time() -> None:
    assert shown("tensors_in_a_row")["calls, emptied"] == "10"
    assert shown("tensors_in_a_row", "--allocator", "uncached")["calls, kept"] == "10"


def test_results_take_memory_that_others_left_and_in_place_none() -> None:
    figures = shown("tensors_in_a_row")
    assert figures["places of ten results"] == "2"
    assert figures["in place"] == "True 11"
    assert figures["new bytes"] == "0"


def test_pieces_do_not_serve_a_larger_tensor_unless_segments_are_expandable() -> None:
    figures = shown("fragments")
    assert figures["five of six in pieces"] == "refused"
    assert "6.00 GiB is reserved by PyTorch but unallocated" in figures["said"]
    expandable = shown("fragments", "--conf", "expandable_segments:True")
    assert expandable["five of six in pieces"] == "works"


def test_free_pieces_are_merged_and_free_segments_given_back_in_need() -> None:
    figures = shown("fragments")
    assert figures["twelve in one"] == "works"
    assert figures["more than a segment"] == "works 1"


# --- figures and reports --------------------------------------------------------------------------


def test_summaries_follow_a_tensors_life() -> None:
    assert summaries(output("reports")) == [
        (0, 0), (400, 400), (0, 400), (200, 400), (0, 0), (1144, 2292),
    ]  # fmt: skip
    assert "PyTorch CUDA memory summary, device ID 0" in output("reports")
    assert "from large pool" in output("reports")


def test_statistics_say_what_is_and_what_was_the_most() -> None:
    figures = shown("reports")
    assert (figures["allocated"], figures["reserved"]) == ("1.20", "2.40")
    assert (figures["most allocated"], figures["most reserved"]) == ("2.40", "2.40")
    assert figures["most since reset"] == "1.20"
    assert figures["retries"] == "0"
    assert figures["only whole numbers"] == "True"
    assert figures["capacity"] == str(gpu_profile(CARD).total_bytes)


def test_a_snapshot_has_python_stacks(tmp_path: Path) -> None:
    script = PROGRAMS / "snapshot.py"
    done = simulate(script, gpu=CARD, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (trace,) = read_recording(tmp_path / "training.pickle").devices
    actions = [action for batch in trace.batches() for action in batch.action.tolist()]
    allocs = [event for event, action in enumerate(actions) if action == Action.ALLOC]
    assert len(allocs) > 3
    stacks = {int(stack) for stack in trace.load().stack[allocs]}
    frames = [frame for stack in stacks for frame in trace.frames(stack)]
    assert {name for file, _, name in frames if file == str(script)} == {"train", "<module>"}
    with pytest.raises(InputError, match="the history is empty"):
        read_recording(tmp_path / "stopped.pickle")


# --- devices --------------------------------------------------------------------------------------


def placement() -> dict[str, str]:
    return shown("placement", "--gpus", "2")


def test_the_current_device_is_switched_in_a_context() -> None:
    figures = placement()
    assert (figures["devices"], figures["current"]) == ("2", "0")
    assert (figures["inside"], figures["outside"]) == ("cuda:1 1", "cuda:0 0")


def test_tensors_are_where_they_are_put_and_move() -> None:
    figures = placement()
    assert figures["made on"] == "cpu cuda:0 cuda:1"
    assert figures["is_cuda"] == "False True True"
    assert figures["moved to"] == "cuda:0 cuda:1 cuda:1"
    assert figures["there and back"] == "True"


def test_a_tensor_that_is_there_already_is_not_copied() -> None:
    assert placement()["no copy"] == "True True"


def test_tensors_of_two_devices_do_not_mix() -> None:
    figures = placement()
    same = "Expected all tensors to be on the same device, but"
    # PyTorch names the first device that is not the CPU first (TensorIterator::compute_types).
    for devices, found in (
        ("cuda:0 + cpu", "cuda:0 and cpu"),
        ("cuda:0 + cuda:1", "cuda:0 and cuda:1"),
        ("cpu + cuda:1", "cuda:1 and cpu"),
    ):
        assert figures[devices] == f"{same} found at least two devices, {found}!"
    assert figures["cuda:0 @ cpu"].startswith(same)
    assert figures["cuda:0 + moved"] == "works cuda:0"


def test_each_device_has_its_own_cache() -> None:
    figures = placement()
    assert figures["cache of 0"] == "0 0"
    assert figures["cache of 1"] == f"{4 * MiB} {20 * MiB}"


# --- running out of memory, and remedies ----------------------------------------------------------


def test_out_of_memory_is_caught_and_survived() -> None:
    figures = shown("out_of_memory")
    assert figures["kind"] == "OutOfMemoryError"
    assert figures["said"].startswith("CUDA out of memory. Tried to allocate 37.25 GiB. GPU 0 has")
    assert figures["errors"] == "1"
    assert figures["goes on"] == "cuda:0"


def test_a_larger_card_fits_more() -> None:
    figures = shown("out_of_memory", gpu="H100")
    assert figures["errors"] == "0"
    assert figures["goes on"] == "cuda:0"


def test_a_process_is_limited_to_a_fraction() -> None:
    figures = shown("fraction")
    assert figures["three quarters"] == "works"
    assert figures["more than the part"].startswith(
        "CUDA out of memory. Tried to allocate 13.40 GiB."
    )
    assert "12.61 GiB allowed" in figures["more than the part"]
    assert figures["without a limit"] == "works"


def test_backward_frees_the_graph() -> None:
    figures = shown("training")
    assert int(figures["plain, forward"]) > 7 * 32  # eight layers keep 32 MiB each
    ways = ("plain", "smaller batch", "checkpoints", "mixed precision")
    assert [figures[f"{way}, left"] for way in ways] == ["0"] * 4


def test_a_smaller_batch_and_checkpoints_take_less_memory() -> None:
    figures = shown("training")
    plain = int(figures["plain, most"])
    assert int(figures["smaller batch, most"]) < plain * 0.6
    assert int(figures["checkpoints, most"]) < plain * 0.8
    assert int(figures["checkpoints, forward"]) < int(figures["plain, forward"]) * 0.7


def test_mixed_precision_takes_less_memory_and_keeps_gradients_exact() -> None:
    figures = shown("training")
    assert (figures["plain, type"], figures["mixed precision, type"]) == (
        "torch.float32",
        "torch.float16",
    )
    assert int(figures["mixed precision, forward"]) < int(figures["plain, forward"]) * 0.7
    assert int(figures["mixed precision, most"]) < int(figures["plain, most"]) * 0.7
    assert figures["gradients"] == "{torch.float32}"


@pytest.mark.long
def test_what_is_kept_from_each_step_is_a_leak() -> None:
    for way in ("activations kept", "detached activations kept", "losses kept", "losses added"):
        assert shown("leak")[way] == "0 16 32 48 64 80"
        assert listed("leak", "warning").count(way) == 5


@pytest.mark.long
def test_a_healthy_loop_keeps_nothing() -> None:
    figures = shown("leak")
    for way in ("nothing kept", "detached losses kept", "numbers added"):
        assert figures[way] == "0 0 0 0 0 0"
        assert way not in listed("leak", "warning")
    assert figures["at the end"] == "0"


# --- time and streams -----------------------------------------------------------------------------


def test_operations_are_asynchronous() -> None:
    figures = shown("asynchronous")
    assert figures["submitted, done"] == "False"
    assert figures["synchronized, done"] == "True"
    assert figures["computing goes on after submitting"] == "True"


def test_copies_to_the_host_and_prints_wait() -> None:
    figures = shown("asynchronous")
    assert (figures["copied, done"], figures["printed, done"]) == ("True", "True")


def test_the_prefetching_loader_delivers_every_batch_in_order() -> None:
    batches = listed("prefetch", "batch")
    assert batches == [f"cuda:0 (32, 1) {first} True" for first in range(0, 320, 32)]
    assert shown("prefetch")["of none"] == "[]"


# --- Windows: host memory that GPUs share ---------------------------------------------------------

WAYS = {
    "Windows": ("--driver", "wddm", "--host-memory", "128GiB"),
    "driver": ("--allocator", "native", "--policy", "spill", "--shared", "64GiB"),
    "elastic": ("--allocator", "elastic", "--policy", "spill", "--shared", "64GiB"),
}
"""Three ways to let tensors spill into host memory.

On Windows, on Linux under PyTorch's allocator, and on Linux under plimsoll's elastic allocator.
"""

spilling = pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)


@spilling
def test_a_tensor_that_fits_is_in_dedicated_memory(options: tuple[str, ...]) -> None:
    figures = shown("shared_memory", *options)
    assert figures["capacity"] == str(gpu_profile(CARD).total_bytes)
    assert figures["8 placed"] == "8 0 0"


@spilling
def test_a_larger_tensor_goes_on_in_shared_memory(options: tuple[str, ...]) -> None:
    assert shown("shared_memory", *options)["48 placed"] == "15 32 0"


@spilling
def test_a_tensor_beyond_both_memories_is_refused(options: tuple[str, ...]) -> None:
    figures = shown("shared_memory", *options)
    assert figures["96 refused"] == "0 0 0"
    assert "Tried to allocate 96.00 GiB" in figures["96 said"]


@spilling
def test_page_locked_memory_is_shared_memory(options: tuple[str, ...]) -> None:
    figures = shown("shared_memory", *options)
    assert figures["32 locked alone"] == "0 0 32"
    assert figures["16 locked beside 48"] == "15 32 16"
    assert SPENT in figures["32 not locked beside 48"]


def test_linux_keeps_to_dedicated_memory() -> None:
    figures = shown("shared_memory", "--host-memory", "128GiB")
    assert figures["8 placed"] == "8 0 0"
    assert figures["48 refused"] == figures["96 refused"] == "0 0 0"
    assert figures["48 said"].startswith("CUDA out of memory. Tried to allocate 48.00 GiB. GPU 0")
    assert figures["32 locked beside 48"] == "0 0 32"


@pytest.mark.long
def test_a_pinned_loader_with_eight_workers_delivers_every_batch() -> None:
    options = ("--driver", "wddm", "--host-memory", "64GiB")
    numbers = [list(range(first, first + 4)) for first in range(0, 28, 4)]
    for name, pinned in (("pageable", False), ("pinned", True)):
        batches = listed("pinned_loader", name, *options)
        assert batches == [f"{pinned} (4, 2097152) {batch}" for batch in numbers]


@pytest.mark.long
def test_only_pinned_batches_are_in_the_memory_that_gpus_share() -> None:
    figures = shown("pinned_loader", "--driver", "wddm", "--host-memory", "64GiB")
    assert figures["pageable, locked and on the card"] == "0 0"
    assert figures["pinned, locked and on the card"] == f"{7 * 32} 0"
    scarce = ("--driver", "wddm", "--host-memory", "256MiB")
    assert len(listed("pinned_loader", "pageable", *scarce)) == 7
    # The number of batches depends on how fast the workers deliver.
    assert len(listed("pinned_loader", "pinned", *scarce)) <= 4
    assert SPENT in shown("pinned_loader", *scarce)["error"]
