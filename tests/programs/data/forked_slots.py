"""Forks a child that drops batches whose memory the parent still uses."""

import gc
import os

import torch

from plimsoll.offloading.data import collate
from plimsoll.offloading.data.collate import PinnedCollate

if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(
        torch.arange(8), 4, num_workers=1, collate_fn=PinnedCollate()
    )
    batches = list(loader)
    words = [collate._word(filling.mapping.storage) for filling in collate._fillings.values()]
    assert [word.value for word in words] == [1, 1]
    child = os.fork()
    if child == 0:
        del batches
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert [word.value for word in words] == [1, 1], "what the program holds may be written over"
    del batches
    assert [word.value for word in words] == [0, 0]
