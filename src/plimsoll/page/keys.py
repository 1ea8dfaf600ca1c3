"""The keys by which the page colours memory. A key puts every block into one of a few groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from plimsoll.base.units import GiB, KiB, MiB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from plimsoll.recordings.analysis.lifetimes import Lifetimes

MOST_GROUPS = 11
"""The most groups whose colours the eye can tell apart. Any further groups are joined into one."""

_SIZE_BOUNDS = (64 * KiB, MiB, 10 * MiB, 100 * MiB, GiB)
_SIZE_NAMES = (
    "under 64 KiB",
    "64 KiB to 1 MiB",
    "1 to 10 MiB",
    "10 to 100 MiB",
    "100 MiB to 1 GiB",
    "1 GiB and more",
)


@dataclass(frozen=True)
class Key:
    """A way to put blocks into groups.

    Attributes:
        name: The key's short name, such as "line".
        title: The key's title on the page.
        groups: The groups' names.
        by: The property of a block that decides its group: "category", "line", "stream", "pool",
            "size" or "tier". Only "tier" can divide one block between two groups: dedicated and
            shared memory.
        table: For "size", the least size of each group except the first. For "line", the index of
            each stack's group. Otherwise, the index of the group of each category, stream, pool or
            tier.
    """

    name: str
    title: str
    groups: Sequence[str]
    by: str
    table: Sequence[int]

    def to_dict(self) -> dict[str, Any]:
        """Returns the key's values for the page's data."""
        return {"name": self.name, "title": self.title, "groups": list(self.groups),
                "by": self.by, "table": list(self.table)}  # fmt: skip

    def groups_of(self, numbers: NDArray[Any]) -> NDArray[np.int64]:
        """Returns the index of each block's group; `DeviceView.numbers_for` makes `numbers`."""
        if self.by == "size":
            bounds = np.array(self.table, dtype=np.uint64)
            return np.searchsorted(bounds, numbers, side="right").astype(np.int64)
        groups: NDArray[np.int64] = np.array(self.table, dtype=np.int64)[numbers]
        return groups


# The order in the picture from bottom to top, with long-lived memory below short-lived memory.
_CATEGORY_ORDER = ("parameters", "optimizer_state", "gradients", "inputs", "workspaces", "other")


def key_of_categories(names: Sequence[str], numbers: NDArray[Any]) -> Key:
    """Returns the grouping of blocks by category.

    Args:
        names: The categories.
        numbers: Each block's category.
    """
    used = [int(number) for number in np.unique(numbers)]
    steady = {name: place for place, name in enumerate(_CATEGORY_ORDER)}
    used.sort(key=lambda number: (steady.get(names[number], len(steady)), number))
    table = np.zeros(len(names), dtype=np.int64)
    table[used] = np.arange(len(used))
    groups = [names[number].replace("_", " ") for number in used]
    return Key("category", "Category", groups or ["nothing"], "category", table.tolist())


def key_of_sizes() -> Key:
    """Returns the grouping by size.

    PyTorch serves requests up to 1 MiB from its small pool, so 1 MiB is one of the bounds.
    """
    return Key("size", "Size", _SIZE_NAMES, "size", _SIZE_BOUNDS)


def key_of_tiers() -> Key:
    """Returns the grouping of bytes by tier: a block may have bytes in both tiers."""
    return Key("tier", "Tier", ("dedicated", "shared"), "tier", (0, 1))


def key_of_numbers(
    name: str,
    title: str,
    names: Sequence[str],
    numbers: NDArray[Any],
    weights: NDArray[np.int64],
) -> Key:
    """Returns a grouping by a property of blocks, such as the stream.

    Each block has a number, such as its stream's. The numbers whose blocks hold the most bytes get
    a group each; the other numbers share the last group.

    Args:
        name: The key's name, which is also the property, `Key.by`.
        title: The key's title on the page.
        names: The name for each number.
        numbers: Each block's number.
        weights: How much each block counts when the largest groups are chosen.
    """
    total = np.bincount(numbers, weights=weights, minlength=len(names))
    blocks = np.bincount(numbers, minlength=len(names))
    ranked = [n for n in np.argsort(-total, kind="stable").tolist() if blocks[n]]
    kept = ranked if len(ranked) <= MOST_GROUPS else ranked[: MOST_GROUPS - 1]
    table = np.full(len(names), len(kept), dtype=np.int64)
    table[kept] = np.arange(len(kept))
    groups = [names[number] for number in kept]
    if len(kept) < len(ranked):
        groups.append(f"{len(ranked) - len(kept):,} others")
    return Key(name, title, groups or ["nothing"], name, table.tolist())


def weights_at_peak(lifetimes: Lifetimes, level: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns how much each block counts when the largest groups are chosen.

    A block that is live at the peak counts with all of its bytes. Any other block counts with a
    millionth of its bytes.
    """
    peak = int(np.argmax(level)) if len(level) else -1
    size = lifetimes.size.astype(np.int64)
    live = (lifetimes.start <= peak) & (lifetimes.end > peak)
    return np.where(live, size, size >> 20)


def stream_names(streams: Sequence[int]) -> list[str]:
    """Returns the names of these streams for the page."""
    return ["default stream" if stream == 0 else f"stream {stream:#x}" for stream in streams]


def pool_names(pools: Sequence[tuple[int, int]]) -> list[str]:
    """Returns the names of these pools for the page."""
    return ["default pool" if pool == (0, 0) else f"private pool {pool[0]}.{pool[1]}"
            for pool in pools]  # fmt: skip
