"""A Llama is fine-tuned on chats by TRL's SFTTrainer, with LoRA.

Needs: transformers, trl, peft, datasets, accelerate
"""

import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

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


def main() -> None:
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=16000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=4,
    )
    texts = [" ".join(WORDS[(i * 7 + j) % 4000] for j in range(500)) for i in range(32)]
    with tempfile.TemporaryDirectory() as folder:
        trainer = SFTTrainer(
            model=LlamaForCausalLM(config).to(torch.bfloat16),
            args=SFTConfig(
                output_dir=folder,
                per_device_train_batch_size=4,
                max_steps=3,
                max_length=512,
                bf16=True,
                logging_steps=1,
                report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_dict({"text": texts}),
            processing_class=tokenizer,
            peft_config=LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj", "v_proj"]),
        )
        trainer.train()
        trainer.save_model(folder)
    print(f"done: {trainer.state.global_step} steps")


main()
