"""Lists the scripts that `make test` runs, and those that only `make test-all` runs.

All these scripts need only PyTorch and transformers, or libraries for which there are stand-ins.
"""

QUICK = frozenset(
    {
        "flash/xformers_attention",
        "kinds/sparse_adam",
        "solvers/fourier_operator",
        "training/bert_finetuning",
        "training/contrastive_towers",
        "training/diffusion_unet",
        "training/gan_gradient_penalty",
        "training/gpt_amp",
        "training/lstm_language_model",
        "training/ppo",
    }
)
LONG = frozenset(
    {
        "flash/flash_attn_functions",
        "graphs/gcn_csr",
        "training/checkpointed_accumulated",
        "training/dlrm",
        "training/vit_mixup",
    }
)
