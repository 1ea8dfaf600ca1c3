"""Reads and writes the gallery's measured and predicted results in benchmarks/results.

A run of `benchmarks/gallery.py` replaces only the results of the scripts that it runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.gallery.figures import Figures

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@dataclass
class Measured:
    """The scripts' memory, measured on a card.

    Attributes:
        gpu: The card's name.
        torch: PyTorch's version.
        figures: The figures, by script name.
    """

    gpu: str = ""
    torch: str = ""
    figures: dict[str, Figures] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path = RESULTS) -> Self:
        """Reads gallery.json. Returns empty results if the folder has no such file."""
        values = _read(folder / "gallery.json")
        figures = _figures(values.get("scripts", {}))
        return cls(values.get("gpu", ""), values.get("torch", ""), figures)

    def write(self, folder: Path = RESULTS) -> None:
        """Writes gallery.json into the folder."""
        scripts = _values(self.figures)
        values = {"gpu": self.gpu, "torch": self.torch, "scripts": scripts}
        _write(folder / "gallery.json", values)

    def of(self, name: str) -> Figures | None:
        """Returns a script's measured figures; None if the script has none."""
        found = self.figures.get(name)
        return None if found is None or found.why_not else found


@dataclass
class Predicted:
    """The scripts' memory, predicted.

    Attributes:
        figures: Maps a PyTorch version (such as 2.11) to the figures predicted under that version,
            by script name.
    """

    figures: dict[str, dict[str, Figures]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path = RESULTS) -> Self:
        """Reads gallery_predicted.json. Returns empty results if the folder has no such file."""
        values = _read(folder / "gallery_predicted.json")
        return cls({version: _figures(each) for version, each in values.items()})

    def write(self, folder: Path = RESULTS) -> None:
        """Writes gallery_predicted.json into the folder."""
        versions = sorted(self.figures, key=lambda text: [int(part) for part in text.split(".")])
        values = {version: _values(self.figures[version]) for version in versions}
        _write(folder / "gallery_predicted.json", values)


def short(torch: str) -> str:
    """Returns PyTorch's version as two numbers: 2.11 for 2.11.0+cu130."""
    return ".".join(torch.split("+")[0].split(".")[:2])


def _figures(values: Mapping[str, Any]) -> dict[str, Figures]:
    return {name: Figures.from_dict(each) for name, each in values.items()}


def _values(figures: Mapping[str, Figures]) -> dict[str, Any]:
    return {name: figures[name].to_dict() for name in sorted(figures)}


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def _write(path: Path, values: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=1) + "\n")
