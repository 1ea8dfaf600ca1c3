"""Exports the live memory at each device's peak, by call stack, for speedscope.app."""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from plimsoll.page.device_view import DeviceView
    from plimsoll.page.run import Run

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def write_speedscope(run: Run, file: IO[bytes]) -> None:
    """Writes a run as sampled profiles, one for each device, with bytes as weights."""
    frames: dict[tuple[str, int, str], int] = {}
    profiles = [_profile(view, frames) for view in run.devices]
    content = {
        "$schema": _SCHEMA,
        "name": run.title,
        "exporter": "plimsoll",
        "activeProfileIndex": 0,
        "shared": {
            "frames": [{"name": name, "file": path, "line": line} for path, line, name in frames]
        },
        "profiles": profiles,
    }
    file.write(json.dumps(content, separators=(",", ":")).encode())


def _profile(view: DeviceView, frames: dict[tuple[str, int, str], int]) -> dict[str, Any]:
    peak = int(np.argmax(view.level))
    live = view.lifetimes[view.lifetimes.live_at(peak)]
    stacks, place = np.unique(live.stack, return_inverse=True)
    weights = np.zeros(len(stacks), dtype=np.int64)
    np.add.at(weights, place, live.size.astype(np.int64))
    samples = []
    for stack in stacks.tolist():
        outermost_first = view.stacks.frames(stack)[::-1] or [("", 0, "no Python frame")]
        samples.append([frames.setdefault(frame, len(frames)) for frame in outermost_first])
    return {
        "type": "sampled",
        "name": f"device {view.device}: live at the peak, after event {peak:,}",
        "unit": "bytes",
        "startValue": 0,
        "endValue": int(weights.sum()),
        "samples": samples,
        "weights": weights.tolist(),
    }
