"""Fine-tunes a hub's model by LoRA in the usual way: argparse, Trainer, peft."""

import argparse

import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="org/tiny-llama")
parser.add_argument("--batch-size", type=int, default=2)
parser.add_argument("--length", type=int, default=64)
parser.add_argument("--steps", type=int, default=3)
options = parser.parse_args()

tokenizer = AutoTokenizer.from_pretrained(options.model)
model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16)
model = get_peft_model(model, LoraConfig(r=8, task_type="CAUSAL_LM", target_modules="all-linear"))
rows = []
for number in range(64):
    text = " ".join(f"word{(number * word) % 997}" for word in range(options.length))
    tokens = tokenizer(text, truncation=True, padding="max_length", max_length=options.length)
    rows.append({"input_ids": tokens["input_ids"], "labels": tokens["input_ids"]})
settings = TrainingArguments(
    "adapter",
    per_device_train_batch_size=options.batch_size,
    max_steps=options.steps,
    bf16=True,
    report_to="none",
)
trainer = Trainer(model, settings, train_dataset=rows, data_collator=default_data_collator)
trainer.train()
trainer.save_model()
