"""The scripts that `make test` runs: they take some seconds with PyTorch and transformers alone.

One is of a library that has a stand-in.
"""

QUICK = frozenset(
    {
        "attention/nested_encoder",
        "flash/flash_attn_functions",
        "training/bert_finetuning",
        "training/dlrm",
        "training/gan_gradient_penalty",
        "training/gpt_amp",
        "training/lstm_language_model",
        "training/vit_mixup",
    }
)
