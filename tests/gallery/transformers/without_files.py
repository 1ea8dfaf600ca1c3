"""A model, a tokenizer and a data set without files are made up from what declares them.

Needs: transformers, accelerate, datasets, pyyaml
Only simulated.
"""

import tempfile
from pathlib import Path

import torch
from datasets import load_dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

CARD = """---
dataset_info:
  features:
  - name: text
    dtype: string
  - name: label
    dtype:
      class_label:
        names:
          '0': bad
          '1': good
  splits:
  - name: train
    num_bytes: 1300000
    num_examples: 1000
---
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        model_folder, rows_folder = Path(folder, "model"), Path(folder, "rows")
        BertConfig(pad_token_id=0).save_pretrained(model_folder)
        rows_folder.mkdir()
        (rows_folder / "README.md").write_text(CARD)

        torch.manual_seed(0)
        tokenizer = AutoTokenizer.from_pretrained(model_folder)
        model = AutoModelForSequenceClassification.from_pretrained(model_folder, num_labels=2)
        rows = load_dataset(str(rows_folder), split="train[:10%]")
        assert len(rows) == 100
        rows = rows.map(lambda row: tokenizer(row["text"], truncation=True), batched=True)
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=16,
                max_steps=3,
                bf16=True,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=rows,
            data_collator=DataCollatorWithPadding(tokenizer),
        )
        trainer.train()
    print(f"done: {trainer.state.global_step} steps")


main()
