"""A Qwen is taught preferences by TRL's DPOTrainer, beside a reference model.

Needs: transformers, trl, datasets, accelerate
"""

import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import DPOConfig, DPOTrainer

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


def text(start: int, count: int) -> str:
    return " ".join(WORDS[(start + j) % 4000] for j in range(count))


def main() -> None:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=16000,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=8,
        num_attention_heads=12,
        num_key_value_heads=4,
    )
    model, reference = Qwen2ForCausalLM(config), Qwen2ForCausalLM(config)
    reference.load_state_dict(model.state_dict())
    pairs = {
        "prompt": [text(i * 11, 100) for i in range(32)],
        "chosen": [" " + text(i * 13, 150) for i in range(32)],
        "rejected": [" " + text(i * 17, 150) for i in range(32)],
    }
    with tempfile.TemporaryDirectory() as folder:
        trainer = DPOTrainer(
            model=model,
            ref_model=reference,
            args=DPOConfig(
                output_dir=folder,
                per_device_train_batch_size=4,
                max_steps=3,
                max_length=256,
                bf16=True,
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_dict(pairs),
            processing_class=make_tokenizer(),
        )
        trainer.train()
    print(f"done: {trainer.state.global_step} steps")


main()
