"""A Llama in eight bits (LLM.int8) predicts next tokens; it multiplies outliers in 16 bits.

Needs: bitsandbytes, transformers, accelerate
Sizes depend on data.
"""

import tempfile

import torch
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

BATCH, LENGTH = 16, 1024


def main() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=4,
        num_attention_heads=16,
    )
    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(config).half().save_pretrained(folder)
        model = LlamaForCausalLM.from_pretrained(
            folder,
            quantization_config=BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=6.0),
            dtype=torch.float16,
            device_map={"": 0},
        )
    model.eval()
    tokens = torch.randint(0, config.vocab_size, (BATCH, LENGTH), device="cuda")
    with torch.inference_mode():
        best = model(tokens, logits_to_keep=1, use_cache=False).logits.argmax(-1)
    assert best.shape == (BATCH, 1)
    print(f"done: {BATCH} tokens in 8 bits")


main()
