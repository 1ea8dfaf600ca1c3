"""from_pretrained loads a checkpoint with a device map: half to the card, half to the host.

Needs: transformers, accelerate
"""

import tempfile

import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM


def main() -> None:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=32000,
        hidden_size=1536,
        intermediate_size=4096,
        num_hidden_layers=10,
        num_attention_heads=12,
        num_key_value_heads=4,
    )
    with tempfile.TemporaryDirectory() as folder:
        Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
        limits = {0: "400MB", "cpu": "4GB"}
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, device_map="auto", max_memory=limits
        )
        assert len(set(model.hf_device_map.values())) == 2
        words = torch.randint(32000, (4, 256), device="cuda")
        model.generate(words, min_new_tokens=8, max_new_tokens=8, do_sample=False)
        del model

        model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", device_map="cuda")
    assert {p.device.type for p in model.parameters()} == {"cuda"}
    answer = model.generate(words, min_new_tokens=32, max_new_tokens=32, do_sample=True)
    assert answer.shape == (4, 288)
    print("done: a split model and a whole one")


main()
