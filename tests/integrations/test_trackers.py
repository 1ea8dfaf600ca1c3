"""Tests that experiment trackers write a run's memory figures into their own files."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integrations.needed import needs
from tests.simulated import on_simulated_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEPS = 3


def train(after_step: Callable[[int], None]) -> None:
    """Allocates 64 MiB in each step, and frees nothing before the end of the training."""
    import torch

    kept = []
    for step in range(STEPS):
        kept.append(torch.zeros(16 << 20, device="cuda"))
        after_step(step)


GROWS = [0.0625, 0.125, 0.1875]
"""GiB allocated after each step."""


@needs("tensorboard")
@on_simulated_gpus()
def test_tensorboard_has_a_scalar_of_each_figure() -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    import plimsoll
    from plimsoll.integrations.tensorboard import watch

    with SummaryWriter("logs") as writer, watch(writer, record="run.plim") as memory:
        train(memory.log)
    events = EventAccumulator("logs").Reload()
    written = events.Scalars("gpu0_memory/allocated_gib")
    assert [(one.step, one.value) for one in written] == list(enumerate(GROWS))
    assert set(events.Tags()["scalars"]) == set(memory.figures())
    assert plimsoll.explain("run.plim", advice=False).peak.allocated_bytes == 192 << 20


@needs("accelerate", "tensorboard")
@on_simulated_gpus()
def test_accelerate_gives_the_figures_to_its_trackers() -> None:
    from accelerate import Accelerator
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from plimsoll.integrations.accelerate import watch

    accelerator = Accelerator(log_with="tensorboard", project_dir="logs")
    accelerator.init_trackers("run")
    with watch(accelerator) as memory:
        train(memory.log)
    accelerator.end_training()
    events = EventAccumulator("logs/run").Reload()
    written = events.Scalars("gpu0_memory/allocated_gib")
    assert [(one.step, one.value) for one in written] == list(enumerate(GROWS))


def records_of_wandb(content: bytes) -> Iterator[bytes]:
    """Yields the records of a W&B file, which has LevelDB's log format after a header.

    A block has 32 KiB and contains pieces of records. Each piece has a header of 7 bytes:
    https://github.com/google/leveldb/blob/main/doc/log_format.md
    """
    place, record = 7, b""
    while place < len(content):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record (1), or the last piece of one (4)
            yield record
            record = b""


def rows_of_wandb(folder: Path) -> list[dict[str, Any]]:
    """Returns each row that an offline W&B run logged, as a dictionary."""
    from wandb.proto import wandb_internal_pb2

    (file,) = folder.rglob("*.wandb")
    rows = []
    for data in records_of_wandb(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            rows.append({_name(each): json.loads(each.value_json) for each in record.history.item})
    return rows


def _name(item: Any) -> str:
    return item.key or "/".join(item.nested_key)


@needs("wandb")
@on_simulated_gpus()
def test_wandb_has_the_figures_in_the_rows_of_the_program() -> None:
    os.environ["WANDB_MODE"] = "offline"
    os.environ["WANDB_SILENT"] = "true"
    import wandb

    from plimsoll.integrations.wandb import watch

    with wandb.init(project="plimsoll", dir=".") as run, watch(run) as memory:

        def after_step(step: int) -> None:
            memory.log()
            run.log({"loss": float(step)})

        train(after_step)
        memory.log(step=7)
    wandb.teardown()  # waits for the process that writes the file
    rows = rows_of_wandb(Path("wandb"))
    found = [(row.get("loss"), row["gpu0_memory/allocated_gib"], row["_step"]) for row in rows]
    assert found == [(0.0, GROWS[0], 0), (1.0, GROWS[1], 1), (2.0, GROWS[2], 2), (None, 0.0, 7)]


@needs("prometheus_client")
@on_simulated_gpus()
def test_prometheus_is_served_a_run() -> None:
    from urllib.request import urlopen

    from prometheus_client.parser import text_string_to_metric_families

    import plimsoll

    server = plimsoll.metrics(port=0)
    found: list[float] = []

    def after_step(_: int) -> None:
        with urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
            families = text_string_to_metric_families(answer.read().decode())
            found.extend(
                sample.value
                for family in families
                for sample in family.samples
                if sample.name == "plimsoll_allocated_bytes"
            )

    train(after_step)
    server.close()
    assert found == pytest.approx([gib * 2**30 for gib in GROWS])
