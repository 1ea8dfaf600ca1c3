"""Finds the recordings for tests: small ones in the project, large ones where available."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[1]
SMALL = ROOT / "tests" / "data"
EXAMPLES = ROOT / "examples" / "recordings"
LARGE = ROOT.parent / "shared" / "traces"


@dataclass(frozen=True)
class Recorded:
    """A snapshot that PyTorch wrote on a GPU, with PyTorch's figures at that moment."""

    path: Path
    facts: dict[str, Any]

    @property
    def name(self) -> str:
        return self.path.name.removesuffix(".pickle.gz")

    @property
    def workload(self) -> str:
        return self.name.split(".")[0]

    @property
    def conf(self) -> str:
        return str(self.facts["conf"] or "")

    @property
    def limit(self) -> int | None:
        fraction = self.facts["fraction"]
        return int(fraction * self.facts["total_memory"]) if fraction else None

    @property
    def stats(self) -> dict[str, int]:
        return dict(self.facts["stats"])


def or_skipped(found: Iterable[object]) -> list[Any]:
    """Returns `found` as a list; if it is empty, returns one parameter that skips the test."""
    reason = f"the large recordings are not in {LARGE}"
    return list(found) or [pytest.param(None, marks=pytest.mark.skip(reason=reason))]


def recordings_in(folder: Path) -> list[Recorded]:
    """Returns a folder's recordings, each with the JSON beside it; empty for a missing folder."""
    return [
        Recorded(path, json.loads(path.with_name(path.name[:-10] + ".json").read_text()))
        for path in sorted(folder.glob("*.pickle.gz"))
    ]
