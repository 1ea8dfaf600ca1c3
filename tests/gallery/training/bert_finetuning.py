"""BERT is fine-tuned for sentences' classes with a warm-up, and evaluated.

Needs: transformers
"""

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup


class Sentences(Dataset):
    def __init__(self, count):
        generator = torch.Generator().manual_seed(count)
        self.ids = torch.randint(1000, 30000, (count, 128), generator=generator)
        self.lengths = torch.randint(20, 129, (count,), generator=generator)
        self.labels = torch.randint(3, (count,), generator=generator)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        mask = (torch.arange(128) < self.lengths[index]).long()
        return {
            "input_ids": self.ids[index] * mask,
            "attention_mask": mask,
            "labels": self.labels[index],
        }


torch.manual_seed(42)
device = "cuda"
model = BertForSequenceClassification(BertConfig(num_labels=3)).to(device)
loader = DataLoader(Sentences(128), batch_size=32, shuffle=True, pin_memory=True)
no_decay = ("bias", "LayerNorm.weight")
groups = [
    {
        "params": [p for n, p in model.named_parameters() if not n.endswith(no_decay)],
        "weight_decay": 0.01,
    },
    {
        "params": [p for n, p in model.named_parameters() if n.endswith(no_decay)],
        "weight_decay": 0.0,
    },
]
optimizer = torch.optim.AdamW(groups, lr=2e-5)
schedule = get_linear_schedule_with_warmup(optimizer, 2, len(loader))
model.train()
for batch in loader:
    batch = {key: value.to(device, non_blocking=True) for key, value in batch.items()}
    loss = model(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()

model.eval()
right = total = 0
with torch.no_grad():
    for batch in DataLoader(Sentences(64), batch_size=64):
        labels = batch.pop("labels")
        guesses = model(**{key: value.to(device) for key, value in batch.items()}).logits.argmax(-1)
        right += (guesses.cpu() == labels).sum().item()
        total += len(labels)
assert total == 64
print("done: 4 steps and an evaluation")
