"""Trains by Hugging Face's Trainer, under any launcher."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


def main() -> None:
    """Trains two steps."""
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=100))
    tokens = [torch.randint(0, 100, (32,)) for _ in range(16)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=4, max_steps=2, report_to=[], save_strategy="no"
        )
        data = [{"input_ids": each, "labels": each} for each in tokens]
        trainer = Trainer(model, arguments, train_dataset=data)
        trainer.train()
        print(
            f"rank {arguments.process_index} of {arguments.world_size} on {arguments.device}",
            flush=True,
        )


if __name__ == "__main__":
    main()
