"""A Qwen learns from a reward by TRL's GRPOTrainer: it generates groups of answers, then trains.

Needs: transformers, trl, datasets, accelerate
Sizes depend on data.
"""

import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

WORDS = [f"w{i}" for i in range(4000)]


def make_tokenizer() -> PreTrainedTokenizerFast:
    names = ["<pad>", "<s>", "</s>", "<unk>", *WORDS]
    words = Tokenizer(models.WordLevel({n: i for i, n in enumerate(names)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )


def reward_variety(completions: list[str], **_: object) -> list[float]:
    return [len(set(text.split())) / (1 + len(text.split())) for text in completions]


def main() -> None:
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=8,
        num_attention_heads=12,
        num_key_value_heads=4,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    prompts = [" ".join(WORDS[(i * 7 + j) % 4000] for j in range(64)) for i in range(16)]
    with tempfile.TemporaryDirectory() as folder:
        Qwen2ForCausalLM(config).save_pretrained(folder)
        trainer = GRPOTrainer(
            model=folder,
            reward_funcs=reward_variety,
            args=GRPOConfig(
                output_dir=folder,
                per_device_train_batch_size=8,
                num_generations=4,
                max_completion_length=96,
                max_steps=2,
                bf16=True,
                beta=0.04,
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            processing_class=tokenizer,
        )
        trainer.train()
    print(f"done: {trainer.state.global_step} steps")


main()
