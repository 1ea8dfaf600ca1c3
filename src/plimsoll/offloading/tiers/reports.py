"""Returns PyTorch's counters, summary and snapshot, with dedicated and shared memory added.

Dedicated memory is the card's own; shared memory is host memory that the GPU uses over the bus.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plimsoll.base.units import format_size
from plimsoll.engine.current import allocator_name, device_number, engine_of, engines_in_use
from plimsoll.engine.gpus.recorded_card import card_entry
from plimsoll.engine.snapshot import add_tiers, note_fragments
from plimsoll.engine.summary import summary_text, tiers_text
from plimsoll.engine.tensor_uses import labels_now
from plimsoll.offloading.tiers.regions import region_names, region_uses

if TYPE_CHECKING:
    from collections.abc import Iterator


def memory_stats(device: int | None = None) -> dict[str, int]:
    """Returns the counters of `torch.cuda.memory_stats()` and those of shared and paused memory.

    PyTorch's own counters include dedicated and shared memory. plimsoll adds
    `shared_allocated_bytes`, `shared_reserved_bytes` and `paused_bytes`, each with current, peak,
    allocated and freed. It also adds `num_spills`: the number of requests that got shared memory
    because dedicated memory was used up.

    >>> plimsoll.memory_stats()["shared_reserved_bytes.current"]  # doctest: +SKIP
    0

    Args:
        device: The GPU, by default the current one.

    Raises:
        InputError: If plimsoll's allocator is not installed.
    """
    return engine_of(device).statistics()


def memory_summary(device: int | None = None, *, abbreviated: bool = False) -> str:
    """Returns PyTorch's summary table, followed by lines on each tier and each region.

    >>> print(plimsoll.memory_summary(abbreviated=True))  # doctest: +SKIP

    Args:
        device: The GPU, by default the current one.
        abbreviated: Whether to leave out the lines of the small and the large pool.

    Raises:
        InputError: If plimsoll's allocator is not installed.
    """
    index = device_number(device)
    engine = engine_of(index)
    table = summary_text(engine.statistics(), index, abbreviated=abbreviated)
    return table + tiers_text(engine) + "".join(f"{line}\n" for line in _regions(index))


def _regions(device: int) -> Iterator[str]:
    for name in region_names():
        use = region_uses(name).get(device)
        if use is None:
            continue
        state = f", {format_size(use.paused_bytes)} paused" if use.paused_bytes else ""
        yield (
            f"region {name}: {format_size(use.allocated_bytes)} allocated, "
            f"{format_size(use.reserved_bytes)} reserved, of it "
            f"{format_size(use.shared_reserved_bytes)} shared{state}"
        )


def memory_snapshot() -> dict[str, Any]:
    """Returns `torch.cuda.memory._snapshot()` with the shared memory of blocks and segments.

    Blocks and segments with shared memory have a "shared_size". Segments whose content is off the
    card have "is_paused". In the snapshot's "allocator_settings", "allocator" is the allocator's
    name, "torch_version" is PyTorch's version, and "gpus" describes the cards. The elastic
    allocator maps memory in pieces of 2 MiB, and adds "fragments_bytes": for each device, the free
    bytes in pieces that are partly in use.

    See docs/tiers.md.

    Raises:
        InputError: If plimsoll's allocator is not installed.
    """
    import torch

    engines = engines_in_use()
    segments = {s.address: s for engine in engines.values() for s in engine.segments()}
    snapshot = torch_snapshot()
    for entry in snapshot["segments"]:
        if found := segments.get(entry["address"]):
            add_tiers(entry, found)
    settings = snapshot["allocator_settings"]
    settings["allocator"] = allocator_name()
    settings["torch_version"] = str(torch.__version__)
    if settings["allocator"] == "elastic":
        for device, engine in engines.items():
            note_fragments(settings, device, engine.fragments_bytes())
    return snapshot


def torch_snapshot() -> dict[str, Any]:
    """Returns `torch.cuda.memory._snapshot()` of any allocator, with two added settings.

    In the snapshot's "allocator_settings", "gpus" describes the cards, and "labels" names the
    tensors of modules and optimizers.
    """
    import torch

    snapshot: dict[str, Any] = torch.cuda.memory._snapshot()
    cards = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    snapshot["allocator_settings"].setdefault(
        "gpus",
        [
            card_entry(device, str(card.name), int(card.total_memory))
            for device, card in enumerate(cards)
        ],
    )
    labels = labels_now()
    if labels:
        snapshot["allocator_settings"]["labels"] = labels
    return snapshot
