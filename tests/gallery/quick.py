"""The scripts that `make test` runs: they take PyTorch alone, and a few seconds each."""

QUICK = frozenset(
    {
        "kinds/sparse_adam",
        "solvers/fourier_operator",
        "training/checkpointed_accumulated",
        "training/dlrm",
        "training/gpt_amp",
        "training/lstm_language_model",
    }
)
