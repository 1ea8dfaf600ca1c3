"""Makes the page: one HTML document with its data, script and styles.

The page's Content-Security-Policy allows only its one script and one style sheet, by their hashes,
and no connection to any other server. The data is JSON in script elements that browsers do not
execute.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from plimsoll.page.assets import page_template
from plimsoll.page.blocks import largest_that_fit
from plimsoll.page.columns import pack_column
from plimsoll.page.overview import span_extremes
from plimsoll.recordings.analysis.category_names import CATEGORIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from plimsoll.page.device_view import DeviceView
    from plimsoll.page.run import Run

MOST_BYTES = 19_000_000
"""The size below which a page stays by default, if possible."""

_SUMS_BYTES = 12  # approximate bytes that `_left_out` adds to the page for each span


@dataclass(frozen=True)
class Page:
    """A page, and how many of the blocks it leaves out.

    Attributes:
        html: The document.
        events: The number of events in the histories.
        blocks: The number of blocks in the histories.
        blocks_left_out: The number of blocks of which the page has only sums.
        least_bytes: The page includes every block of at least this size in bytes. 0 if no block is
            left out.
    """

    html: str
    events: int
    blocks: int
    blocks_left_out: int
    least_bytes: int


FORMAT = 2
"""The version of the format of a page's data; a page reads only data of its own version."""


def make_page(
    runs: Sequence[Run],
    *,
    served: bool = False,
    most_bytes: int = MOST_BYTES,
    first_device: int = 0,
) -> Page:
    """Makes the page of one run, or of two side by side.

    Args:
        runs: The runs to show.
        served: Whether a server serves the page. The page then requests left-out blocks from it.
        most_bytes: The size below which the page stays, if possible.
        first_device: The number by which the server knows the first device of the runs. The other
            devices have the numbers that follow.
    """
    devices = [view for run in runs for view in run.devices]
    packed = [_pack_device(view) for view in devices]
    template = page_template()
    taken = len(template) + sum(len(_json(one)) for one in packed)
    # The sums of left-out blocks take some of the page's bytes.
    sums = _SUMS_BYTES * sum(one["overview"]["top"]["count"] for one in packed)
    room = max(most_bytes - taken - sums, 0)
    events = sum(view.event_count for view in devices)
    blocks: list[dict[str, Any]] = []
    left_out = least_bytes = 0
    for view, one in zip(devices, packed, strict=True):
        share = room * view.event_count // events
        columns, rows, least = largest_that_fit(view, share)
        one["least_bytes"] = least
        one["left_out"] = _left_out(view, rows, one["overview"]["span"]) if least else None
        left_out += len(view.lifetimes) - len(rows)
        least_bytes = max(least_bytes, least)
        blocks.append(columns)
    groups = iter(packed)
    data = {
        "format": FORMAT,
        "first_device": first_device,
        "served": served,
        "runs": [
            {"name": run.title, "devices": [next(groups) for _ in run.devices]} for run in runs
        ],
    }
    html = template.replace("@CONNECT@", "'self'" if served else "'none'", 1)
    elements = [data_element("data", data)]
    elements += [data_element(f"blocks-{number}", one) for number, one in enumerate(blocks)]
    return Page(
        html=html.replace("@DATA@", "\n".join(elements), 1),
        events=events,
        blocks=sum(len(view.lifetimes) for view in devices),
        blocks_left_out=left_out,
        least_bytes=least_bytes,
    )


def _pack_device(view: DeviceView) -> dict[str, Any]:
    overview = view.overview()
    segments = view.segments
    return {
        "device": view.device,
        "allocator": view.allocator,
        "max_split_size": view.max_split_size,
        "events": view.event_count,
        "blocks": len(view.lifetimes),
        "begin_us": view.begin_us,
        "end_us": int(view.time_us[-1]),
        "origin": str(view.origin),
        "streams": [str(stream) for stream in view.streams],
        "pools": [f"{first}.{second}" for first, second in view.lifetimes.pools],
        "categories": list(CATEGORIES),
        "overview": overview.pack(),
        "keys": [
            {
                **key.to_dict(),
                "bytes": [
                    pack_column(column, "delta")
                    for column in view.bytes_by_group(key, overview.top).T
                ],
            }
            for key in view.keys
        ],
        "segments": {
            "start": pack_column(segments.start, "delta"),
            "life": pack_column(
                np.where(segments.end < view.event_count, segments.end - segments.start + 1, 0)
            ),
            "address": pack_column(segments.address - np.uint64(view.origin)),
            "size": pack_column(segments.size),
            "shared": pack_column(segments.shared),
            "stream": pack_column(segments.stream),
            "private": pack_column(segments.private),
            "expandable": pack_column(segments.expandable),
        },
        "stacks": view.stacks.pack(),
        "moments": [[one.event, one.kind, one.text, one.stack] for one in view.moments],
        "notes": list(view.notes),
    }


def _left_out(view: DeviceView, rows: NDArray[np.int64], span: int) -> dict[str, Any]:
    """Returns the least and the most bytes that the left-out blocks take in each span.

    A span is `span` consecutive events; the last span may have fewer.
    """
    rest = np.ones(len(view.lifetimes), dtype=bool)
    rest[rows] = False
    small = view.lifetimes[np.flatnonzero(rest)]
    low, high = span_extremes(small.level(), span)
    return {
        "blocks": len(small),
        "low": pack_column(low, "delta"),
        "high": pack_column(high, "delta"),
    }


def data_element(name: str, data: dict[str, Any]) -> str:
    """Returns a page's data as a script element, which browsers do not execute."""
    return f'<script type="application/json" id="{name}">{_json(data)}</script>'


def _json(data: dict[str, Any]) -> str:
    """Returns ASCII JSON in which no text can end the script element or begin a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
