"""Runs recorded operations on a simulated GPU. Prints operations whose allocations differ.

Run it as `plimsoll run --simulate H200 check_operations.py RECORDED.jsonl.gz`. Each line of the
file has an operation with its inputs, and the allocations and frees of its forward and backward
pass under PyTorch 2.11 on an H200. A pass is a list of numbers. A positive number is the size
of an allocation in bytes. -N is the free of the Nth allocation of the pass.
"""

from __future__ import annotations

import gc
import gzip
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "i64": torch.int64,
    "i32": torch.int32,
    "b8": torch.bool,
}
Events = list[Any]


def make(spec: list[Any]) -> torch.Tensor:
    """Returns a tensor of a shape, type and memory format. Integers are 0: always a valid index."""
    shape, dtype, memory_format, needs_grad = spec
    kind = DTYPES[dtype]
    if kind.is_floating_point:
        tensor = torch.empty(shape, dtype=kind, device="cuda")
    else:
        tensor = torch.zeros(shape, dtype=kind, device="cuda")
    if memory_format == "channels_last":
        tensor = tensor.to(memory_format=torch.channels_last)
    return tensor.requires_grad_(needs_grad)


class Recorder:
    """Records the allocations and frees between `start` and `stop`."""

    def start(self) -> None:
        """Forgets earlier events."""
        torch.cuda.synchronize()
        torch.cuda.memory._record_memory_history(None)
        torch.cuda.memory._record_memory_history("all", context=None)

    def stop(self) -> Events:
        """Returns the events as integers.

        An allocation becomes its size in bytes. The free of the Nth allocation becomes -N.
        """
        numbers: dict[int, int] = {}
        count = 0
        events: Events = []
        for event in torch.cuda.memory._snapshot()["device_traces"][0]:
            if event["action"] == "alloc":
                count += 1
                numbers[event["addr"]] = count
                events.append(event["size"])
            elif event["action"] == "free_completed" and event["addr"] in numbers:
                events.append(-numbers.pop(event["addr"]))
        return events


def run(case: dict[str, Any]) -> tuple[Events, Events | None]:
    """Runs an operation twice. Returns the second run's forward and backward events."""
    recorder = Recorder()
    for _ in range(2):
        inputs = [make(spec) for spec in case["inputs"]]
        names = {"torch": torch, "F": F} | {f"x{i}": x for i, x in enumerate(inputs)}
        recorder.start()
        out = eval(case["op"], names)  # safe: the file belongs to this project
        forward = recorder.stop()
        backward = None
        if case["backward"] is not None:
            first = out[0] if isinstance(out, tuple) else out
            wanted = [x for x in inputs if x.requires_grad]
            seed = torch.ones_like(first)
            recorder.start()
            kept = torch.autograd.grad(first, wanted, seed, allow_unused=True)
            backward = recorder.stop()
            del kept
        del out
    return forward, backward


def main() -> None:
    """Prints a line for each operation that differs, and their number in the last line."""
    gc.disable()
    text = gzip.decompress(Path(sys.argv[1]).read_bytes()).decode()
    cases = [json.loads(line) for line in text.splitlines()]
    wrong = 0
    for case in cases:
        try:
            forward, backward = run(case)
        except (RuntimeError, IndexError) as error:
            forward, backward = [str(error)], None  # an error counts as a difference
        if forward != case["forward"] or backward != case["backward"]:
            wrong += 1
            print(json.dumps({**case, "here": [forward, backward]}))
    print(f"{len(cases)} operations, {wrong} differ")


if __name__ == "__main__":
    main()
