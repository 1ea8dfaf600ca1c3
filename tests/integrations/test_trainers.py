"""Tests plimsoll's callbacks with the real trainer classes, on a simulated GPU."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integrations.needed import needs
from tests.simulated import on_simulated_gpus

if TYPE_CHECKING:
    import torch

WIDTH = 512
PARAMETERS = 2 * WIDTH * WIDTH + 2 * WIDTH


def model() -> torch.nn.Module:
    from torch import nn

    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def batches(count: int) -> list[dict[str, torch.Tensor]]:
    import torch

    return [{"inputs": torch.zeros(WIDTH)} for _ in range(count)]


def hugging_face_trainer(steps: int, kept: list[Any] | None = None, **settings: Any) -> Any:
    """Returns a Trainer. In each step its small model appends one tensor to `kept`."""
    import torch
    from torch import nn
    from transformers import Trainer, TrainingArguments

    class Model(nn.Module):  # type: ignore[misc]  # as people write it
        def __init__(self) -> None:
            super().__init__()
            self.layers = model()

        def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
            hidden = self.layers(inputs)
            if kept is not None:
                kept.append(torch.zeros(1 << 20, device="cuda"))
            return {"loss": hidden.float().square().mean()}

    arguments = TrainingArguments(
        output_dir="out", max_steps=steps, logging_steps=1, save_strategy="no", disable_tqdm=True,
        **{"report_to": "none", **settings},
    )  # fmt: skip
    return Trainer(model=Model(), args=arguments, train_dataset=batches(8 * steps))


@needs("transformers", "accelerate")
@on_simulated_gpus()
def test_what_the_trainer_logs_has_the_memory_in_it() -> None:
    import torch

    from plimsoll.integrations.hugging_face import MemoryCallback

    trainer = hugging_face_trainer(4)
    MemoryCallback().add_to(trainer)
    trainer.train()
    logged = [line for line in trainer.state.log_history if "loss" in line]
    assert [line["step"] for line in logged] == [1, 2, 3, 4]
    of_gpu = {name.removeprefix("gpu0_memory/"): one for name, one in logged[-1].items()}
    stats = torch.cuda.memory_stats()
    assert of_gpu["peak_allocated_gib"] == stats["allocated_bytes.all.peak"] / 2**30
    assert of_gpu["peak_reserved_gib"] == stats["reserved_bytes.all.peak"] / 2**30
    # The peak includes at least the parameters, their gradients and AdamW's two moments.
    assert of_gpu["peak_allocated_gib"] > 4 * 4 * PARAMETERS / 2**30
    free, _ = torch.cuda.mem_get_info()
    assert of_gpu["headroom_gib"] == free / 2**30
    assert of_gpu["ooms"] == 0


@needs("transformers", "accelerate", "tensorboard")
@on_simulated_gpus()
def test_the_trainers_reports_have_it_too() -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from plimsoll.integrations.hugging_face import MemoryCallback

    trainer = hugging_face_trainer(3, report_to="tensorboard")
    MemoryCallback().add_to(trainer)
    trainer.train()
    events = EventAccumulator(str(next(Path().rglob("events*")).parent)).Reload()
    written = events.Scalars("train/gpu0_memory/peak_allocated_gib")
    assert [one.step for one in written][:3] == [1, 2, 3]
    kept = [line["gpu0_memory/peak_allocated_gib"] for line in trainer.state.log_history]
    assert [one.value for one in written] == pytest.approx(kept)


@pytest.mark.long
@needs("transformers", "accelerate")
@on_simulated_gpus()
def test_a_training_is_recorded_and_watched() -> None:
    import plimsoll
    from plimsoll.integrations.hugging_face import MemoryCallback

    kept: list[Any] = []
    trainer = hugging_face_trainer(40, kept)
    callback = MemoryCallback(record="run.plim")
    callback.add_to(trainer)
    with pytest.warns(plimsoll.LeakWarning, match="keeps 4.00 MiB more GPU memory each step"):
        trainer.train()
    (leak,) = callback.memory.leaks
    assert Path(__file__).name in leak.what
    assert leak.what.endswith("forward")
    found = plimsoll.explain("run.plim", advice=False)
    assert (found.steps.source, found.steps.count) == ("marks", 40)
    assert leak.what in [each.what for each in found.leaks]


@pytest.mark.long
@needs("transformers", "accelerate")
@on_simulated_gpus()
def test_a_second_training_begins_anew_after_one_that_failed() -> None:
    from plimsoll.integrations.hugging_face import MemoryCallback

    trainer = hugging_face_trainer(2)
    callback = MemoryCallback()
    callback.add_to(trainer)
    trainer.train_dataset = [{"nothing": row["inputs"]} for row in trainer.train_dataset]
    with pytest.raises((TypeError, ValueError, IndexError)):
        trainer.train()
    trainer.train_dataset = batches(16)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        trainer.train()
    assert "gpu0_memory/allocated_gib" in trainer.state.log_history[-1]


def lightning_module() -> Any:
    import lightning
    import torch

    class Module(lightning.LightningModule):  # type: ignore[misc]  # the same
        def __init__(self) -> None:
            super().__init__()
            self.layers = model()

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            loss: torch.Tensor = self.layers(batch["inputs"]).square().mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    return Module()


def lightning_trainer(callback: Any, **settings: Any) -> Any:
    import lightning

    return lightning.Trainer(
        accelerator="gpu", devices=1, max_epochs=1, callbacks=[callback], log_every_n_steps=2,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        **settings,
    )  # fmt: skip


def loader(count: int) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(batches(8 * count), batch_size=8)


@needs("lightning", "tensorboard")
@on_simulated_gpus()
def test_lightning_logs_records_and_ends() -> None:
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

    import plimsoll
    from plimsoll.integrations.lightning import MemoryCallback

    loggers = [CSVLogger("logs"), TensorBoardLogger("logs")]
    callback = MemoryCallback(record="run.plim")
    trainer = lightning_trainer(callback, logger=loggers, accumulate_grad_batches=2)
    trainer.fit(lightning_module(), loader(12))

    import csv

    with Path(loggers[0].log_dir, "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    peak = "gpu0_memory/peak_allocated_gib"
    assert [int(row["step"]) for row in rows if row[peak]] == [1, 3, 5]
    # the steps at which the module itself logged its loss
    assert [int(row["step"]) for row in rows if row["loss"]] == [1, 3, 5]
    peaks = [float(row[peak]) for row in rows if row[peak]]
    assert peaks[-1] > 4 * 4 * PARAMETERS / 2**30
    found = plimsoll.explain("run.plim", advice=False)
    assert (found.steps.source, found.steps.count) == ("marks", 6)

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(loggers[1].log_dir).Reload()
    assert len(events.Scalars("gpu0_memory/headroom_gib")) == 3


@needs("lightning")
@on_simulated_gpus()
def test_a_fit_that_fails_ends_its_recording() -> None:
    import torch

    import plimsoll
    from plimsoll.integrations.lightning import MemoryCallback
    from plimsoll.recordings.reading import read_recording

    module = lightning_module()
    module.configure_optimizers = lambda: torch.optim.SGD(module.parameters(), lr=0.1)
    module.on_train_batch_end = lambda *_: torch.empty(1 << 40, device="cuda")
    trainer = lightning_trainer(MemoryCallback(record="run.plim"), logger=False)
    with pytest.raises(torch.OutOfMemoryError):
        trainer.fit(module, loader(2))
    assert read_recording("run.plim").is_whole
    with plimsoll.record("next.plim"):
        pass


@pytest.mark.long
@needs("transformers", "accelerate")
@on_simulated_gpus(gpu="RTX 3060:1GiB")
def test_a_thin_headroom_is_warned_of_once() -> None:
    from plimsoll.integrations.hugging_face import MemoryCallback
    from plimsoll.integrations.memory_watch import HeadroomWarning

    trainer = hugging_face_trainer(3)
    MemoryCallback(headroom="90%", leaks=False).add_to(trainer)
    with pytest.warns(HeadroomWarning) as warned:
        trainer.train()
    messages = [str(each.message) for each in warned if each.category is HeadroomWarning]
    assert len(messages) == 1
    assert "to spare at the peak of this run, less than 921.60 MiB" in messages[0]
