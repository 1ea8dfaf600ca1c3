"""LoRA tunes an OPT with 8-bit layers, which are quantized when they move to the GPU.

Needs: bitsandbytes, peft, transformers
"""

import bitsandbytes as bnb
import torch
from peft import LoraConfig, get_peft_model
from transformers import OPTConfig, OPTForCausalLM

BATCH, LENGTH, STEPS = 4, 512, 3


def quantize(module: torch.nn.Module) -> None:
    """Replaces all linear layers except the head by 8-bit layers."""
    for name, child in module.named_children():
        if name == "lm_head":
            continue
        if not isinstance(child, torch.nn.Linear):
            quantize(child)
            continue
        layer = bnb.nn.Linear8bitLt(
            child.in_features, child.out_features, child.bias is not None, has_fp16_weights=False
        )
        layer.load_state_dict(child.state_dict())
        setattr(module, name, layer)


def main() -> None:
    torch.manual_seed(0)
    config = OPTConfig(
        vocab_size=16000,
        hidden_size=1024,
        ffn_dim=4096,
        num_hidden_layers=8,
        num_attention_heads=16,
    )
    model = OPTForCausalLM(config).half()
    quantize(model)
    model = model.cuda()
    lora = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(model, lora)
    model.train()
    optimizer = bnb.optim.Adam8bit([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    for _ in range(STEPS):
        tokens = torch.randint(0, config.vocab_size, (BATCH, LENGTH), device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"done: {STEPS} steps of LoRA in 8 bits")


main()
