# --- article ---
import torch
import time

# 示例：将数据批次预加载到 GPU
class PrefetchLoader:
    def __init__(self, loader, device):
        self.loader = loader
        self.device = device

    def __iter__(self):
        stream = torch.cuda.Stream()
        first = True

        for batch in self.loader:
            with torch.cuda.stream(stream):
                next_batch = self._to_device(batch)

            if not first:
                yield current_batch
            else:
                first = False

            torch.cuda.current_stream().wait_stream(stream)
            current_batch = next_batch

        yield current_batch

    def _to_device(self, batch):
        if isinstance(batch, tuple):
            return tuple(x.to(self.device, non_blocking=True) for x in batch)
        return batch.to(self.device, non_blocking=True)

# 使用示例
# dataloader = DataLoader(dataset, batch_size=32)
# prefetch_loader = PrefetchLoader(dataloader, device='cuda')
# for data, target in prefetch_loader:
#     output = model(data)
#     loss = criterion(output, target)
# --- check ---
from torch.utils.data import DataLoader, TensorDataset

dataset = TensorDataset(torch.arange(320.0).reshape(320, 1), torch.arange(320))
batches = list(PrefetchLoader(map(tuple, DataLoader(dataset, batch_size=32)), device="cuda"))
for data, target in batches:
    print("batch", data.device, tuple(data.shape), target.tolist()[0])
tensors = [torch.full((4,), float(number)) for number in range(5)]
print("order", [batch[0].item() for batch in PrefetchLoader(tensors, "cuda")])
