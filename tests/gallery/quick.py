"""The scripts that `make test` runs, about a sixth: they take PyTorch and transformers alone."""

QUICK = frozenset(
    {
        "training/bert_finetuning",
        "training/checkpointed_accumulated",
        "training/contrastive_towers",
        "training/diffusion_unet",
        "training/dlrm",
        "training/gan_gradient_penalty",
        "training/gpt_amp",
        "training/lstm_language_model",
        "training/ppo",
        "training/vit_mixup",
    }
)
