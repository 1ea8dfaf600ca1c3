"""Tests PrefetchLoader and PinnedCollate on a machine without a GPU."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from plimsoll import InputError  # noqa: E402
from plimsoll.offloading.data import collate as slots  # noqa: E402
from plimsoll.offloading.data.collate import PinnedCollate  # noqa: E402
from plimsoll.offloading.data.copies import copy_async  # noqa: E402
from plimsoll.offloading.data.loader import PrefetchLoader  # noqa: E402
from plimsoll.offloading.data.statistics import LoaderStatistics  # noqa: E402
from tests.recordings import ROOT  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_on_the_host_batches_pass_through() -> None:
    batches = [{"x": torch.ones(2), "n": n} for n in range(5)]
    loader = PrefetchLoader(batches, "cpu", depth=3)
    assert len(loader) == 5
    assert all(found is batch for found, batch in zip(loader, batches, strict=True))
    found = loader.statistics()
    assert (found.batches, found.copied_bytes) == (5, 0)
    assert copy_async(batches, "cpu").wait() is batches


def test_errors_pass_through_as_they_are() -> None:
    mine = KeyError("mine")

    def source() -> Iterator[int]:
        yield 1
        raise mine

    batches = iter(PrefetchLoader(source(), "cpu"))
    assert next(batches) == 1
    with pytest.raises(KeyError) as caught:
        next(batches)
    assert caught.value is mine


def test_what_else_is_asked_is_the_loaders() -> None:
    inner = torch.utils.data.DataLoader(range(10), batch_size=5)
    loader = PrefetchLoader(inner, "cpu")
    assert loader.batch_size == 5
    assert loader.dataset is inner.dataset
    with pytest.raises(AttributeError, match="nonsense"):
        loader.nonsense  # noqa: B018


@pytest.mark.parametrize("depth", [0, -1, 1.5, "2", True, None])
def test_depths_that_are_none(depth: Any) -> None:
    with pytest.raises(InputError, match="a depth is a number above zero"):
        PrefetchLoader([], "cpu", depth)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_devices_that_are_not_there() -> None:
    for device in ("cuda", "cuda:3"):
        with pytest.raises(InputError, match="there is no GPU"):
            PrefetchLoader([], device)


def statistics(**seconds: float) -> LoaderStatistics:
    nothing = dict.fromkeys(
        (
            "loader_seconds",
            "staging_seconds",
            "gpu_seconds",
            "program_seconds",
            "copy_seconds",
        ),
        0.0,
    )
    return LoaderStatistics(
        batches=3, copied_bytes=3 << 20, total_seconds=10, pinned_bytes=0, **(nothing | seconds)
    )


def test_the_slowest_part_is_named() -> None:
    assert statistics(loader_seconds=5, copy_seconds=2).slowest == "loader"
    assert statistics(copy_seconds=2, program_seconds=8).slowest == "copy"
    assert statistics(copy_seconds=0.5, program_seconds=9).slowest == "program"
    text = str(statistics(loader_seconds=5, copy_seconds=2))
    assert text.startswith("3 batches, 3.00 MiB copied, in 10.00 s.")
    assert "waited 5.00 s (50%) for the loader" in text
    assert text.endswith("give it more workers.")


@pytest.mark.parametrize(
    "seconds",
    [
        {"loader_seconds": 5, "program_seconds": 2},
        {"loader_seconds": 10 / 3, "gpu_seconds": 10 / 3, "program_seconds": 10 / 3},
        {"loader_seconds": 1.05, "staging_seconds": 2.05, "program_seconds": 6.8},
        {"program_seconds": 10, "copy_seconds": 6},
    ],
)
def test_the_hosts_shares_add_up(seconds: dict[str, float]) -> None:
    found = statistics(**seconds)
    text = str(found)
    assert sum(int(share) for share in re.findall(r"\((\d+)%\)", text)) == 100
    named = sum(each for name, each in seconds.items() if name != "copy_seconds")
    assert found.other_seconds == pytest.approx(found.total_seconds - named)
    assert f"{found.other_seconds:.2f} s (" in text


class Numbers(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        x = torch.full((100 + 50 * (index // 8),), index)
        return {"x": x, "array": x.numpy(), "n": index, "name": str(index)}


def load(**options: Any) -> Any:
    return torch.utils.data.DataLoader(
        Numbers(24), 4, num_workers=2, persistent_workers=True, **options
    )


def as_lists(batch: Any) -> Any:
    return {key: part if key == "name" else part.tolist() for key, part in batch.items()}


def address(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


def test_a_pinned_collate_makes_the_same_batches() -> None:
    wanted = [as_lists(batch) for batch in load()]
    for collate in (PinnedCollate(), PinnedCollate(torch.utils.data.default_collate)):
        loader = load(collate_fn=collate)
        for _ in range(2):
            assert [as_lists(batch) for batch in loader] == wanted
    assert [as_lists(b) for b in map(PinnedCollate(), _samples())] == wanted


def _samples() -> Iterator[list[Any]]:
    numbers = Numbers(24)
    for first in range(0, 24, 4):
        yield [numbers[index] for index in range(first, first + 4)]


def test_slots_are_filled_again_but_not_while_somebody_holds_a_batch() -> None:
    loader = load(collate_fn=PinnedCollate())
    kept = list(loader)
    assert len({address(batch["x"]) for batch in kept}) == 6
    assert all(address(batch["x"]) == address(batch["array"]) for batch in kept)
    values = [as_lists(batch) for batch in kept]
    for _ in range(3):
        assert [as_lists(batch) for batch in loader] == values
    assert [as_lists(batch) for batch in kept] == values
    used = {address(batch["x"]) for batch in kept}
    label = kept[0]["n"]
    del kept
    again = [address(batch["x"]) for _ in range(3) for batch in loader]
    assert address(label) not in again
    assert len(set(again)) < 12
    assert used & set(again)


def test_a_worker_whose_slots_are_all_in_use_makes_ordinary_batches() -> None:
    loader = torch.utils.data.DataLoader(Numbers(24), 1, num_workers=1, collate_fn=PinnedCollate())
    kept = list(loader)
    assert [batch["n"].item() for batch in kept] == list(range(24))
    assert [batch["x"][0, 0].item() for batch in kept] == list(range(24))
    assert len(slots._fillings) == slots._MOST_SLOTS
    del kept
    assert not slots._fillings


def test_a_child_of_fork_does_not_give_the_programs_slots_back() -> None:
    path = ROOT / "tests" / "programs" / "data" / "forked_slots.py"
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_slots_are_forgotten_with_their_collate() -> None:
    loader = load(collate_fn=PinnedCollate())
    for _ in loader:
        pass
    assert slots._mappings
    del loader, _
    import gc

    gc.collect()
    assert not slots._mappings
