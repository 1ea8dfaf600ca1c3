"""A Llama is trained with Liger's kernels: the logits of the whole batch never exist.

Needs: transformers, liger-kernel
"""

import torch
from liger_kernel.transformers import apply_liger_kernel_to_llama
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    torch.manual_seed(0)
    apply_liger_kernel_to_llama()
    config = LlamaConfig(
        vocab_size=64000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=6,
        num_attention_heads=16,
        num_key_value_heads=4,
    )
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(3):
        words = torch.randint(64000, (4, 1024), device="cuda")
        loss = model(input_ids=words, labels=words).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("done: 3 steps")


main()
