"""A Mistral gets DoRA adapters, is trained, saved, loaded again and merged.

Needs: transformers, peft
"""

import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import MistralConfig, MistralForCausalLM


def make_model() -> MistralForCausalLM:
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=16000,
        hidden_size=1024,
        intermediate_size=3584,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=8,
    )
    return MistralForCausalLM(config).to("cuda", torch.bfloat16)


def main() -> None:
    adapters = LoraConfig(
        r=16,
        lora_alpha=32,
        lora_dropout=0.05,
        use_dora=True,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"],
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(make_model(), adapters)
    model.print_trainable_parameters()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    for _ in range(3):
        batch = torch.randint(16000, (4, 512), device="cuda")
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        del model, optimizer, trained, loss
        merged = PeftModel.from_pretrained(make_model(), folder).merge_and_unload()
    with torch.no_grad():
        logits = merged(torch.randint(16000, (2, 512), device="cuda")).logits
    assert logits.shape == (2, 512, 16000)
    print("done: 3 steps and a merge")


main()
