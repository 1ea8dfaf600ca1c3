"""A Llama's weights stay on the host and come to the card layer by layer: accelerate's cpu_offload.

Needs: transformers, accelerate
"""

import torch
from accelerate import cpu_offload, cpu_offload_with_hook
from transformers import LlamaConfig, LlamaForCausalLM


def make_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=6,
        num_attention_heads=16,
        num_key_value_heads=8,
    )
    return LlamaForCausalLM(config).half().eval()


def main() -> None:
    model = cpu_offload(make_model(), execution_device=torch.device("cuda"))
    words = torch.randint(32000, (8, 512), device="cuda")
    with torch.no_grad():
        for _ in range(2):
            logits = model(input_ids=words).logits
    assert logits.shape == (8, 512, 32000)
    assert logits.device.type == "cuda"
    assert all(p.device.type == "meta" for p in model.parameters())
    del model, logits

    model, hook = cpu_offload_with_hook(make_model(), execution_device=torch.device("cuda"))
    with torch.no_grad():
        model(input_ids=words[:2])
    hook.offload()
    assert all(p.device.type == "cpu" for p in model.parameters())
    print("done: two ways to stay on the host")


main()
