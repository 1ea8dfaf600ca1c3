"""A GPT-2 is trained by Trainer in bfloat16, with accumulation, evaluation and checkpoints.

Needs: transformers, accelerate
"""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Numbers(Dataset):
    def __init__(self, rows: int, length: int, vocabulary: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.rows = torch.randint(vocabulary, (rows, length), generator=generator)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def main() -> None:
    torch.manual_seed(0)
    config = GPT2Config(n_layer=6, n_embd=768, n_head=12, vocab_size=16384, n_positions=512)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=4,
            per_device_eval_batch_size=8,
            gradient_accumulation_steps=2,
            max_steps=4,
            bf16=True,
            eval_strategy="steps",
            eval_steps=2,
            save_steps=2,
            save_total_limit=1,
            logging_steps=1,
            learning_rate=1e-4,
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=GPT2LMHeadModel(config),
            args=arguments,
            train_dataset=Numbers(64, 512, config.vocab_size),
            eval_dataset=Numbers(16, 512, config.vocab_size),
        )
        trainer.train()
        metrics = trainer.evaluate()
    assert "eval_loss" in metrics
    print(f"done: {trainer.state.global_step} steps")


main()
