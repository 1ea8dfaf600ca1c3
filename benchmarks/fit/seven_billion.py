"""Fine-tunes all of a Llama's seven billion parameters in bfloat16: AdamW, 2048 tokens."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

BATCH, LENGTH, STEPS = 2, 2048, 4


def main():
    """Trains for a few steps."""
    torch.manual_seed(0)
    config = LlamaConfig()  # the defaults are Llama 2 7B
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    model = model.to_empty(device="cuda")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.01)
    for _, buffer in model.named_buffers():
        buffer.fill_(1e-3)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for step in range(STEPS):
        ids = torch.randint(0, config.vocab_size, (BATCH, LENGTH), device="cuda")
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
