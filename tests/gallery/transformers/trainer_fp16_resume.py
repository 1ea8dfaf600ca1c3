"""A BERT classifier is trained in float16 with a gradient scaler, then goes on from a checkpoint.

Needs: transformers, accelerate
"""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)


class Reviews(Dataset):
    def __init__(self, rows: int, length: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.words = torch.randint(5, 20000, (rows, length), generator=generator)
        self.stars = torch.randint(5, (rows,), generator=generator)

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {
            "input_ids": self.words[index],
            "attention_mask": torch.ones_like(self.words[index]),
            "labels": self.stars[index],
        }


def accuracy(prediction) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def make_trainer(folder: str, steps: int) -> Trainer:
    set_seed(0)
    config = BertConfig(vocab_size=20000, num_hidden_layers=8, num_labels=5)
    return Trainer(
        model=BertForSequenceClassification(config),
        args=TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=16,
            max_steps=steps,
            fp16=True,
            gradient_checkpointing=True,
            save_steps=2,
            logging_steps=1,
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Reviews(128, 256),
        eval_dataset=Reviews(32, 256),
        compute_metrics=accuracy,
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_trainer(folder, steps=2).train()
        trainer = make_trainer(folder, steps=4)
        trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-2")
        metrics = trainer.evaluate()
    assert 0 <= metrics["eval_accuracy"] <= 1
    print(f"done: {trainer.state.global_step} steps")


main()
