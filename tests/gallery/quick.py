"""The scripts that `make test` runs, about a tenth: they take PyTorch and transformers alone.

Besides those whose libraries have stand-ins.
"""

QUICK = frozenset(
    {
        "flash/flash_attn_functions",
        "flash/xformers_attention",
        "generation/caches",
        "training/checkpointed_accumulated",
        "training/diffusion_unet",
        "training/gan_gradient_penalty",
        "training/gpt_amp",
        "training/ppo",
    }
)
