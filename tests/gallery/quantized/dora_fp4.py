"""DoRA tunes a ViT after the script has replaced its linear layers by layers of 4-bit floats.

Needs: bitsandbytes, peft, transformers
"""

import bitsandbytes as bnb
import torch
from peft import LoraConfig, get_peft_model
from transformers import ViTConfig, ViTForImageClassification

BATCH, STEPS = 32, 3


def quantize(module: torch.nn.Module) -> None:
    """Replaces all linear layers except the classifier by 4-bit layers."""
    for name, child in module.named_children():
        if name == "classifier":
            continue
        if not isinstance(child, torch.nn.Linear):
            quantize(child)
            continue
        layer = bnb.nn.LinearFP4(
            child.in_features, child.out_features, compute_dtype=torch.bfloat16
        )
        layer.load_state_dict(child.state_dict())
        setattr(module, name, layer)


def main() -> None:
    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(num_labels=100, num_hidden_layers=8))
    quantize(model)
    model = model.cuda()
    targets = [
        name for name, module in model.named_modules() if isinstance(module, bnb.nn.Linear4bit)
    ]
    dora = LoraConfig(r=16, use_dora=True, target_modules=targets, modules_to_save=["classifier"])
    model = get_peft_model(model, dora)
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for _ in range(STEPS):
        images = torch.randn(BATCH, 3, 224, 224, device="cuda")
        labels = torch.randint(0, 100, (BATCH,), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(pixel_values=images, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"done: {STEPS} steps of DoRA")


main()
