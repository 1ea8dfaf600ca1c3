"""Fine-tunes Hugging Face's T5 (small) in bf16 with AdamW and gradient accumulation."""

import torch
from transformers import T5Config, T5ForConditionalGeneration


def main(steps=10, batch=16, accumulate=2):
    torch.manual_seed(0)
    model = T5ForConditionalGeneration(T5Config(num_layers=6, decoder_start_token_id=0)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(steps):
        source = torch.randint(32000, (batch, 384), device="cuda")
        target = torch.randint(32000, (batch, 96), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=source, labels=target).loss / accumulate
        loss.backward()
        if (step + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
