"""Fine-tunes Whisper-small on speech: fp16 autocast with GradScaler, Adam, gradient clipping."""

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

BATCH, TOKENS, STEPS = 12, 224, 6


def train_step(model, batch, optimizer, scaler):
    """Trains one step and returns the loss."""
    with torch.autocast("cuda", dtype=torch.float16):
        outputs = model(input_features=batch["features"], labels=batch["labels"])
    optimizer.zero_grad()
    scaler.scale(outputs.loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    return outputs.loss


def main():
    """Trains for a few steps."""
    torch.manual_seed(0)
    config = WhisperConfig(
        d_model=768, encoder_layers=12, decoder_layers=12, encoder_attention_heads=12,
        decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).to("cuda").train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    scaler = torch.amp.GradScaler("cuda")
    for step in range(STEPS):
        batch = {
            "features": torch.randn(BATCH, 80, 3000, device="cuda"),
            "labels": torch.randint(0, 50000, (BATCH, TOKENS), device="cuda"),
        }
        loss = train_step(model, batch, optimizer, scaler)
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
