"""A T5 is trained by Seq2SeqTrainer, and generates while it is evaluated.

Needs: transformers, accelerate
"""

import tempfile

import torch
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
)


def rows(count: int, length: int, labels: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        {
            "input_ids": torch.randint(2, 8000, (length,), generator=generator),
            "attention_mask": torch.ones(length, dtype=torch.long),
            "labels": torch.randint(2, 8000, (labels,), generator=generator),
        }
        for _ in range(count)
    ]


def main() -> None:
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=8192,
        d_model=512,
        d_ff=2048,
        num_layers=6,
        num_heads=8,
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(config)
    model.generation_config.eos_token_id = None
    with tempfile.TemporaryDirectory() as folder:
        trainer = Seq2SeqTrainer(
            model=model,
            args=Seq2SeqTrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=8,
                per_device_eval_batch_size=8,
                max_steps=3,
                bf16=True,
                optim="adafactor",
                predict_with_generate=True,
                generation_max_length=24,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=rows(32, 384, 96),
            eval_dataset=rows(16, 384, 96),
        )
        trainer.train()
        output = trainer.predict(rows(8, 384, 96))
    assert output.predictions.shape[0] == 8
    print("done: 3 steps")


main()
