"""Lists the scripts that `make test` runs: a sixth of all scripts.

They need only PyTorch and transformers, or libraries that have stand-ins.
"""

QUICK = frozenset(
    {
        "flash/flash_attn_functions",
        "flash/xformers_attention",
        "graphs/gcn_csr",
        "kinds/sparse_adam",
        "solvers/fourier_operator",
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
