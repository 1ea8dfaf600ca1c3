"""Shows that a loader that copies on a side stream delivers every batch, in order."""

from collections.abc import Iterable, Iterator

import torch
from torch.utils.data import DataLoader, TensorDataset


def prefetched(batches: Iterable[list[torch.Tensor]]) -> Iterator[list[torch.Tensor]]:
    """Yields each batch on the GPU, while the next one is copied."""
    copies = torch.cuda.Stream()
    ready: list[torch.Tensor] | None = None
    for batch in batches:
        with torch.cuda.stream(copies):
            following = [part.to("cuda", non_blocking=True) for part in batch]
        if ready is not None:
            yield ready
        torch.cuda.current_stream().wait_stream(copies)
        for part in following:
            part.record_stream(torch.cuda.current_stream())
        ready = following
    if ready is not None:
        yield ready


dataset = TensorDataset(torch.arange(320.0).reshape(320, 1), torch.arange(320))
for data, target in prefetched(DataLoader(dataset, batch_size=32, pin_memory=True)):
    same = torch.equal(data[:, 0].long(), target)
    print(f"batch: {data.device} {tuple(data.shape)} {target[0]} {same}")
print("of none:", list(prefetched([])))
