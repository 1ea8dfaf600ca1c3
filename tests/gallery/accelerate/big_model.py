"""A model too large for its share of the card is distributed over card, host and disk.

Needs: transformers, accelerate
"""

import tempfile

import torch
from accelerate import (
    disk_offload,
    infer_auto_device_map,
    init_empty_weights,
    load_checkpoint_and_dispatch,
)
from accelerate.utils import get_max_memory
from transformers import GPT2Config, GPT2LMHeadModel

CONFIG = GPT2Config(n_layer=12, n_embd=1280, n_head=20, vocab_size=16384, tie_word_embeddings=False)


def main() -> None:
    torch.manual_seed(0)
    words = torch.randint(16384, (4, 256), device="cuda")
    with tempfile.TemporaryDirectory() as folder:
        GPT2LMHeadModel(CONFIG).save_pretrained(folder, max_shard_size="200MB")
        with init_empty_weights():
            model = GPT2LMHeadModel(CONFIG)
        limits = {**get_max_memory(), 0: "600MB", "cpu": "400MB"}
        places = infer_auto_device_map(
            model, max_memory=limits, no_split_module_classes=["GPT2Block"]
        )
        assert {0, "cpu", "disk"} == set(places.values())
        model = load_checkpoint_and_dispatch(
            model, folder, device_map=places, offload_folder=f"{folder}/disk"
        )
        with torch.no_grad():
            for _ in range(2):
                logits = model(input_ids=words).logits
        assert logits.shape == (4, 256, 16384)
        del model, logits

        model = disk_offload(GPT2LMHeadModel(CONFIG), f"{folder}/all", torch.device("cuda"))
        with torch.no_grad():
            model(input_ids=words)
    print("done: card, host and disk")


main()
