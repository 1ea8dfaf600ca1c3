"""A Qwen in four bits with doubly quantized statistics writes 64 tokens.

Needs: bitsandbytes, transformers, accelerate
"""

import tempfile

import torch
from transformers import BitsAndBytesConfig, Qwen2Config, Qwen2ForCausalLM

BATCH, PROMPT, NEW = 4, 128, 64


def main() -> None:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5504,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=4,
    )
    with tempfile.TemporaryDirectory() as folder:
        Qwen2ForCausalLM(config).half().save_pretrained(folder)
        model = Qwen2ForCausalLM.from_pretrained(
            folder,
            quantization_config=BitsAndBytesConfig(
                load_in_4bit=True,
                bnb_4bit_quant_type="nf4",
                bnb_4bit_use_double_quant=True,
                bnb_4bit_compute_dtype=torch.float16,
            ),
            dtype=torch.float16,
            device_map={"": 0},
        )
    model.eval()
    prompt = torch.randint(0, config.vocab_size, (BATCH, PROMPT), device="cuda")
    written = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=NEW,
        min_new_tokens=NEW,
        do_sample=False,
        pad_token_id=0,
    )
    assert written.shape == (BATCH, PROMPT + NEW)
    print(f"done: {NEW} tokens in 4 bits")


main()
