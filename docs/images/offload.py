"""Draws offload.svg from benchmarks/results/offload.txt. Needs matplotlib.

python docs/images/offload.py
"""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "plimsoll"  # the same file each time

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "benchmarks" / "results" / "offload.txt"
ROW = re.compile(
    r"(?P<method>\w+) +(?P<allocator>torch|elastic) +(?P<card>all|[\d.]+ GiB) +(?P<ms>[\d.]+)"
    r"( +[\d.]+){3} +(?P<taken>[\d.]+)"
)
TITLES = {
    "offload": ("plimsoll.offload", "o-"),
    "both": ("plimsoll.offload and place_optimizer", "s-"),
    "save_on_cpu": ("save_on_cpu(pin_memory=True)", "D"),
    "plain": ("as it is", "*"),
}


def points() -> dict[str, dict[float, float]]:
    """Returns, for each method, a map from the GiB on the card to a step's milliseconds.

    If several rows have the same method, allocator and card, the first row counts. The memory that
    a row has taken includes shared memory, but the card holds at most the limit. So the memory on
    the card is the smaller of these two values.
    """
    found: dict[str, dict[float, float]] = {name: {} for name in TITLES}
    cards: set[tuple[str | None, ...]] = set()
    for line in RESULTS.read_text().splitlines():
        if match := ROW.match(line):
            row = match.group("method", "allocator", "card")
            if row not in cards:
                cards.add(row)
                taken = float(match["taken"]) / 1024
                limit = taken if match["card"] == "all" else float(match["card"].split()[0])
                found[match["method"]][min(taken, limit)] = float(match["ms"])
    return found


def main() -> None:
    """Draw."""
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for method, by_taken in points().items():
        title, style = TITLES[method]
        axes.plot(by_taken.keys(), by_taken.values(), style, label=title)
    axes.set_xlabel("on the card, GiB")
    axes.set_ylabel("a step of gpt2_adamw on an H100, ms")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(HERE / "offload.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
