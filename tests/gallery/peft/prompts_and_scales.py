"""A GPT-2 is tuned by learned prompts, then another GPT-2 by IA3's scales.

Needs: transformers, peft
"""

import torch
from peft import IA3Config, PrefixTuningConfig, PromptTuningConfig, TaskType, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel


def train(adapters) -> None:
    torch.manual_seed(0)
    config = GPT2Config(n_layer=8, n_embd=1024, n_head=16, vocab_size=16384)
    model = get_peft_model(GPT2LMHeadModel(config).cuda(), adapters)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3)
    for _ in range(2):
        batch = torch.randint(16384, (4, 384), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    train(PromptTuningConfig(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=32))
    train(PrefixTuningConfig(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=32))
    train(IA3Config(task_type=TaskType.CAUSAL_LM))
    print("done: three kinds of adapters")


main()
