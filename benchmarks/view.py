"""Measures the page that `plimsoll view` makes of ten million events.

The table has the page's size, the time to its first paint, its frame rates, and the memory of the
server that sends it.

    python benchmarks/view.py [--events 10000000] [--keep FOLDER]

This program makes the trace of a training run, the same trace every time. All steps differ, since
batches vary in length and some operations are skipped at random. A headless Chromium opens the page
and gets scripted input, such as a turn of the wheel in every frame. requestAnimationFrame counts
the frames. Results go to benchmarks/results/view.txt as well.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from report import heading, save

from plimsoll.page.document import MOST_BYTES
from plimsoll.recordings.events import Action, EventBatch
from plimsoll.recordings.parquet import TraceWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from playwright.sync_api import Page

LAYERS = 64
OPERATIONS = 60
PARAMETERS = 6 * LAYERS
MiB = 1 << 20
CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
ARENAS = {
    "parameters": 1 << 40,
    "states": 2 << 40,
    "gradients": 3 << 40,
    "activations": 4 << 40,
    "temporaries": 5 << 40,
}
ARENA_SIZES = {
    "parameters": 2048 * MiB,
    "states": 3072 * MiB,
    "gradients": 2048 * MiB,
    "activations": 8192 * MiB,
    "temporaries": 20 * MiB,
}


class Training:
    """Makes the events of a training run, step by step.

    Activations lie one after another in their address range, and are freed in reverse order. All
    temporaries have the same address, because only one exists at a time. Gradients have fixed
    addresses.
    """

    def __init__(self) -> None:
        self._random = np.random.default_rng(20260101)
        self._parameter_sizes = self._random.choice([4096, 2 * MiB, 8 * MiB], PARAMETERS)
        per_token = self._random.choice([8, 64, 512, 1536, 6144], LAYERS * OPERATIONS)
        self._per_token = per_token
        self._time = 1_700_000_000_000_000
        self.events = 0

    def setup(self) -> EventBatch:
        """Returns the events that allocate segments, then parameters, then optimizer states."""
        actions, addresses, sizes, stacks = [], [], [], []
        for arena, base in ARENAS.items():
            actions.append(Action.SEGMENT_ALLOC)
            addresses.append(base)
            sizes.append(ARENA_SIZES[arena])
            stacks.append(0)
        for arena, copies, stack in (("parameters", 1, 1), ("states", 2, 2)):
            place = ARENAS[arena]
            for size in np.tile(self._parameter_sizes, copies).tolist():
                actions.append(Action.ALLOC)
                addresses.append(place)
                sizes.append(size)
                stacks.append(stack)
                place += size
        return self._batch(*map(np.array, (actions, addresses, sizes, stacks)))

    def step(self) -> EventBatch:
        """Returns the events of one step: forward, backward, and setting the gradients to None."""
        tokens = int(self._random.integers(64, 512))
        runs = np.flatnonzero(self._random.random(LAYERS * OPERATIONS) < 0.95)
        size = self._per_token[runs] * tokens + self._random.integers(0, 64, len(runs)) * 512
        kept = -(-size // 512) * 512
        place = ARENAS["activations"] + np.cumsum(kept) - kept
        stack = 10 + runs
        scratch = np.full(len(runs), ARENAS["temporaries"])
        small = 512 + self._random.integers(0, 2048, (3, len(runs))) * 8

        alloc, free = [Action.ALLOC], [Action.FREE_REQUESTED, Action.FREE_COMPLETED]
        # In the forward pass, each operation allocates its activation, which stays. Then it
        # allocates and frees two temporaries, one after the other. In the backward pass, each
        # operation allocates and frees one temporary, and then frees its activation.
        forward = self._weave(
            [(alloc, place, size, stack), (alloc + free, scratch, small[0], stack + 4000),
             (alloc + free, scratch, small[1], stack + 8000)]
        )  # fmt: skip
        back = slice(None, None, -1)
        backward = self._weave(
            [(alloc + free, scratch[back], small[2], stack[back] + 12000),
             (free, place[back], size[back], stack[back])]
        )  # fmt: skip
        gradients = self._parameter_sizes
        there = ARENAS["gradients"] + np.cumsum(gradients) - gradients
        which = np.full(PARAMETERS, 3)
        made = self._weave([(alloc, there, gradients, which)])
        dropped = self._weave([(free, there, gradients, which)])
        parts = [forward, made, backward, dropped]
        return self._batch(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    @staticmethod
    def _weave(
        parts: list[tuple[list[Action], NDArray[Any], NDArray[Any], NDArray[Any]]],
    ) -> tuple[NDArray[Any], ...]:
        """Interleaves the parts: for each operation in turn, the events of every part."""
        count = len(parts[0][1])
        actions = [action for part in parts for action in part[0]]
        columns = [np.tile(actions, count)]
        for column in (1, 2, 3):
            wide = [part[column] for part in parts for _ in part[0]]
            columns.append(np.stack(wide, axis=1).reshape(-1))
        return tuple(columns)

    def _batch(
        self,
        action: NDArray[Any],
        address: NDArray[Any],
        size: NDArray[Any],
        stack: NDArray[Any],
    ) -> EventBatch:
        times = self._time + np.cumsum(self._random.integers(1, 12, len(action)))
        self._time = int(times[-1])
        self.events += len(action)
        none = np.zeros(len(action), dtype=np.uint64)
        return EventBatch.of(
            {"action": action, "address": address, "size": size, "stack": stack, "stream": none,
             "time_us": times, "pool_first": none, "pool_second": none}
        )  # fmt: skip


def frames(stack: int) -> list[tuple[str, int, str]]:
    """Returns the Python frames of the call stack that has this number in the made-up run."""
    torch = "/opt/site-packages/torch/"
    call = (torch + "nn/modules/module.py", 1780, "_call_impl")
    start = ("/home/me/train.py", 88, "main")
    if stack == 1:
        return [(torch + "nn/modules/module.py", 930, "_apply"), ("/home/me/train.py", 41, "build")]
    if stack == 2:
        return [(torch + "optim/adamw.py", 214, "step"), ("/home/me/train.py", 95, "main")]
    number = (stack - 10) % 4000
    if stack == 3 or stack >= 12000:
        return [(torch + "autograd/graph.py", 829, "_engine_run_backward"),
                ("/home/me/train.py", 92, "main")]  # fmt: skip
    layer, operation = divmod(number, OPERATIONS)
    place = ("/home/me/model.py", 20 + operation, f"forward_{operation // 12}")
    return [place, *[call, ("/home/me/model.py", 200 + layer, "forward")] * 4, call, start]


def write_trace(path: Path, events: int) -> int:
    """Writes the run until it has at least `events` events. Returns their number."""
    training = Training()
    with TraceWriter(path) as writer:
        writer.write(0, training.setup())
        while training.events < events:
            writer.write(0, training.step())
        writer.end_device(0, segments=[], start=[], frames=frames)
    return training.events


def make_page(trace: Path, page: Path) -> tuple[float, int, dict[str, Any]]:
    """Makes the page in a separate process. Returns seconds, peak resident bytes, and output."""
    program = (
        "import json, pathlib, sys, time\n"
        "start = time.perf_counter()\n"
        "from plimsoll.page.page_file import view\n"
        "result = view(sys.argv[1], output=sys.argv[2])\n"
        "status = pathlib.Path('/proc/self/status').read_text()\n"
        "peak = int(status.split('VmHWM:')[1].split()[0]) * 1024\n"
        "print(json.dumps([time.perf_counter() - start, peak, result.to_dict()]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(trace), str(page)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    seconds, peak, result = json.loads(done.stdout)
    return seconds, peak, result


@contextmanager
def server(trace: Path, most_bytes: int) -> Iterator[tuple[str, int]]:
    """Serves a page from a process of its own. Yields the page's URL and that process's id."""
    program = (
        "import sys\n"
        "from plimsoll.page.server import PageServer\n"
        "from plimsoll.page.run import prepare\n"
        "from plimsoll.recordings.reading import read_recording\n"
        "runs = [prepare(read_recording(sys.argv[1]))]\n"
        "server = PageServer(runs, most_bytes=int(sys.argv[2]))\n"
        "print(server.url, flush=True)\n"
        "server.serve_forever()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(trace), str(most_bytes)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.terminate()
        process.wait()


def memory(pid: int, what: str) -> int:
    """Returns a process's resident bytes: VmRSS for now, VmHWM for the peak."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split(f"{what}:")[1].split()[0]) * 1024


def first_paint(page: Page, address: str) -> tuple[float, float]:
    """Opens the page. Returns the seconds until its first paint, and until it reports "ready"."""
    begin = time.perf_counter()
    page.goto(address, wait_until="commit")
    page.wait_for_selector("html[data-state=ready]", state="attached", timeout=120_000)
    ready = time.perf_counter() - begin
    painted = page.evaluate("performance.getEntriesByName('painted')[0].startTime")
    return painted / 1e3, ready


# Turns the mouse wheel once in every frame, and records the time between frames.
_PLAY = """
async ({ frames, input }) => {
  const canvas = document.querySelector(".timeline canvas[tabindex]");
  const box = canvas.getBoundingClientRect();
  const inputs = {
    zoomIn: () => ({ deltaY: -60 }),
    zoomOut: () => ({ deltaY: 60 }),
    pan: (i) => ({ deltaX: i % 40 < 20 ? 60 : -60 }),
  };
  const gaps = [];
  let before = await new Promise(requestAnimationFrame);
  for (let i = 0; i < frames; i++) {
    canvas.dispatchEvent(new WheelEvent("wheel", {
      ...inputs[input](i), clientX: box.left + box.width * 0.6, clientY: box.top + 100,
      bubbles: true, cancelable: true,
    }));
    const now = await new Promise(requestAnimationFrame);
    gaps.push(now - before);
    before = now;
  }
  return gaps;
}
"""


def frame_rates(page: Page) -> list[tuple[str, float, float]]:
    """Returns each movement's average frame rate, and the rate that 95 % of its frames reach."""
    rows = []
    for name, script in (
        ("zoom in, from all to single events", ("zoomIn", 130)),
        ("pan among single events", ("pan", 120)),
        ("zoom out to all", ("zoomOut", 130)),
        ("zoom in to a step", ("zoomIn", 45)),
        ("pan along steps", ("pan", 120)),
        ("zoom in to where spans turn into events", ("zoomIn", 12)),
        ("pan there", ("pan", 120)),
    ):
        kind, count = script
        gaps = page.evaluate(_PLAY, {"frames": count, "input": kind})
        rows.append((name, 1e3 / np.mean(gaps), 1e3 / float(np.percentile(gaps, 95))))
    return rows


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--keep", type=Path, help="Keep the trace and the page here.")
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        trace, file = folder / "training.parquet", folder / "training.html"
        if not trace.exists():
            write_trace(trace, arguments.events)
        file.unlink(missing_ok=True)
        seconds, peak, result = make_page(trace, file)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        lines = [
            heading(),
            f"{result['events']:,} events, {result['blocks']:,} blocks; Chromium "
            f"{browser.version}, headless, 1280x800, drawn by the processor",
            "",
            f"{'page, written in':<48}{seconds:10.1f} s",
            f"{'  memory to write it, at most':<48}{peak / 2**30:10.2f} GiB",
            f"{'  size of the file':<48}{result['page_bytes'] / 1e6:10.1f} MB",
            f"{'  blocks in it one by one':<48}"
            f"{result['blocks'] - result['blocks_summed_up']:10,d}",
            f"{'  the others are smaller than':<48}"
            f"{result['summed_up_below_bytes'] or 0:10,d} bytes",
        ]

        def measure(name: str, address: str) -> None:
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            paints = [first_paint(page, address) for _ in range(3)]
            lines.extend(["", name])
            lines.append(f"{'  first paint (median of 3)':<48}{np.median(paints, 0)[0]:10.2f} s")
            lines.append(f"{'  every block at hand':<48}{np.median(paints, 0)[1]:10.2f} s")
            lines.append(f"{'':<48}{'frames/s':>10}{'slowest 5 %':>13}")
            for what, mean, slow in frame_rates(page):
                lines.append(f"  {what:<46}{mean:10.1f}{slow:13.1f}")
            page.close()

        measure("the file", file.absolute().as_uri())
        for name, most_bytes in (
            ("served (--serve)", MOST_BYTES),
            ("served, small blocks on demand: a page of 4 MB at most", 4_000_000),
        ):
            with server(trace, most_bytes) as (address, pid):
                measure(name, address)
                now, most = (memory(pid, what) / 2**30 for what in ("VmRSS", "VmHWM"))
            lines.append(f"{'  memory of the server, now':<48}{now:10.2f} GiB")
            lines.append(f"{'  at most, while preparing':<48}{most:10.2f} GiB")
        browser.close()
    text = "\n".join(lines) + "\n"
    print(text)
    save("view", text)


if __name__ == "__main__":
    main()
