"""PrefetchLoader with Hugging Face's Trainer: one method is overridden.

Use `PrefetchTrainer` where you use `Trainer`.
"""

import sys
from typing import Any

from plimsoll import PrefetchLoader

try:
    from transformers import Trainer
except ImportError:
    print("data_trainer.py needs transformers: pip install transformers", file=sys.stderr)
    sys.exit(2)


class PrefetchTrainer(Trainer):
    """A Trainer that copies training batches to the device before its steps need them."""

    def get_train_dataloader(self) -> Any:
        """Return the Trainer's own loader, wrapped so that it copies batches ahead of the steps."""
        loader = super().get_train_dataloader()
        if getattr(loader, "device", None) is not None:
            loader.device = None  # accelerate's wrapper then leaves batches on the host
        return PrefetchLoader(loader, self.args.device)
