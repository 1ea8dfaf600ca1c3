"""The memory figures of a gallery script, measured on a card or predicted."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from plimsoll.prediction.assumed import SIZES_BY_DATA
from tests.gallery.scripts import Script

GPU = "H200"
MOST_SECONDS = 900
_REFUSED = re.compile(r"\brefuse[ds]?\b|\bnot simulated\b")


@dataclass(frozen=True)
class Figures:
    """The figures of one run, or the reason why there are none.

    Attributes:
        why_not: The reason why there are no figures; "" if there are figures.
        allocated_bytes: Peak of allocated memory.
        reserved_bytes: Peak of reserved memory.
        allocated_range: The lowest and the highest value that `allocated_bytes` may have. None for
            a measurement, and for a prediction in which all sizes are certain.
        reserved_range: The same range for `reserved_bytes`.
        by_data: Whether a size depends on data that the prediction does not know.
        allocations: The number of allocations; only for a measurement.
        seconds: For a measurement, the time of the whole process, including its start. For a
            prediction, the time that `plimsoll predict` reports.
        versions: The versions of the script's libraries.
    """

    why_not: str = ""
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    allocated_range: tuple[int, int] | None = None
    reserved_range: tuple[int, int] | None = None
    by_data: bool = False
    allocations: int = 0
    seconds: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Returns the values that differ from the defaults."""
        return {name: value for name, value in asdict(self).items() if value}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Makes figures from the result of `to_dict`."""
        ranges = {name: tuple(values[name]) for name in values if name.endswith("_range")}
        return cls(**{**values, **ranges})


def predicted(script: Script, gpu: str = GPU) -> Figures:
    """Runs `plimsoll predict` on a script, in an empty folder, and returns the predicted figures.

    The prediction uses the PyTorch of this process.
    """
    if missing := script.missing():
        return Figures(why_not=f"not installed: {', '.join(missing)}")
    command = [
        sys.executable,
        "-m",
        "plimsoll",
        "predict",
        str(script.path),
        "--gpu",
        gpu,
        "--json",
    ]
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                cwd=folder,
                timeout=MOST_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return Figures(why_not=f"took more than {MOST_SECONDS} s")
    versions = script.versions()
    if done.returncode != 0:
        return Figures(why_not=last_lines(done.stderr + done.stdout), versions=versions)
    found = json.loads(done.stdout.splitlines()[-1])
    figures = Figures(
        allocated_bytes=found["peak_allocated_bytes"],
        reserved_bytes=found["peak_reserved_bytes"],
        allocated_range=_range(found["peak_allocated_range_bytes"]),
        reserved_range=_range(found["peak_reserved_range_bytes"]),
        seconds=round(found["seconds"], 1),
        versions=versions,
    )
    by_data = any(each["what"] in SIZES_BY_DATA for each in found["assumptions"])
    figures = replace(figures, by_data=by_data)
    assumed = [f"{each['operation']}: {each['what']}" for each in found["assumptions"]]
    if refused := [each for each in assumed if _REFUSED.search(each)]:
        return replace(figures, why_not="; ".join(refused))
    if found["stopped"] is not None:
        return replace(figures, why_not=f"stopped: {found['stopped']['why']}")
    if not script.ended_well(done.stderr):
        return replace(figures, why_not=f"did not print {script.last_line!r}")
    return figures


def last_lines(text: str) -> str:
    """Returns the last 12 lines of what a failed command printed."""
    return "\n".join(text.strip().splitlines()[-12:])


def _range(values: list[int] | None) -> tuple[int, int] | None:
    return None if values is None else (values[0], values[1])
