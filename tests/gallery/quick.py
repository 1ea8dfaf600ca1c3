"""The scripts that `make test` runs, about a sixth: they take PyTorch and transformers alone."""

QUICK = frozenset(
    {
        "training/gpt_amp",
    }
)
