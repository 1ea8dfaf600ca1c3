"""A Llama in eight bits (LLM.int8) computes logits; outliers go through half precision.

Needs: bitsandbytes, transformers, accelerate
Sizes hang on data.
"""

import tempfile

import torch
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

BATCH, LENGTH = 8, 512


def main() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=6,
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
        logits = model(tokens).logits
        best = logits[:, -1].argmax(-1)
    assert best.shape == (BATCH,)
    print("done: logits in 8 bits")


main()
