"""Facts about the snippets of five articles: their missing definitions, and their expected output.

The constants name these articles:
- WINDOWS is about the memory that GPUs share under Windows.
- TUTORIAL is about managing CUDA memory.
- MECHANISM is about how PyTorch allocates.
- SMI is about why nvidia-smi shows more memory than tensors take.
- PREALLOCATION is about why PyTorch takes memory beforehand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulated import summaries

if TYPE_CHECKING:
    from collections.abc import Callable


def anything(_output: str) -> bool:
    return True


def says(*parts: str) -> Callable[[str], bool]:
    """Returns a function that checks whether an output has all these parts, in this order."""
    pattern = ".*?".join(rf"(?<![\d.]){re.escape(part)}(?!\d|\.\d)" for part in parts)
    return lambda output: re.search(pattern, output, re.DOTALL) is not None


def summarizes(*expected: tuple[int, int]) -> Callable[[str], bool]:
    """Returns a function that checks the memory summaries in an output.

    `expected` has a pair for each summary: its allocated MiB and its reserved MiB.
    """
    return lambda output: summaries(output) == list(expected)


def warns(output: str) -> bool:
    """Checks that at least five lines are printed, and that the memory that they show grows."""
    grown = [float(re.findall(r"\d+\.\d+", line)[0]) for line in output.splitlines()]
    return len(grown) >= 5 and grown == sorted(grown) and grown[0] < grown[-1]


@dataclass(frozen=True)
class Case:
    """How a snippet is run and checked. The code in these fields is not in the article."""

    before: str = ""
    """Python that defines the snippet's missing names."""
    after: str = ""
    """Python that asserts facts that the snippet does not print."""
    inside: dict[str, str] = field(default_factory=dict)
    """Python to insert into the snippet, before the first line that begins with the key."""
    options: tuple[str, ...] = ()
    gpu: str = "V100-16GB"
    prints: Callable[[str], bool] = anything
    """Returns whether the snippet's output is right."""


TWO = ("--gpus", "2")
WDDM = ("--driver", "wddm", "--host-memory")
SPILL = ("--allocator", "elastic", "--policy", "spill", "--shared")
WINDOWS = "000_538a17ad10b266ad"
TUTORIAL = "001_35f97d28ff4dd3c7"
MECHANISM = "002_579a7fdf392abebf"
SMI = "003_e44893d560ff0fd1"
PREALLOCATION = "004_af8f666aa4b16b6d"

FITS = """
stats = torch.cuda.memory_stats()
assert stats["num_ooms"] == 0
assert stats["allocated_bytes.all.peak"] == 48 << 30
assert stats["reserved_bytes.all.current"] == 0
"""
REFUSED = """
assert torch.cuda.memory_stats()["num_ooms"] == 1
"""
SAYS_REFUSED = says(
    "15.77", "<class 'torch.OutOfMemoryError'>",
    "CUDA out of memory. Tried to allocate 48.00 GiB. GPU 0 has a total",
)  # fmt: skip
NO_SLEEP = """
import time
time.sleep = lambda seconds: None
"""
MODEL = """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4096, 4096)

    def forward(self, data):
        activations = self.layer(data)
        if LEAKS:
            history.append(activations)
        return activations.sum()

history = []
model = Model().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(4096, 4096, device="cuda")
model(data).backward()  # gradients belong to the baseline
history.clear()
"""
LAYERS = """
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).cuda()
for parameter in model.parameters():
    parameter.grad = torch.zeros_like(parameter)
input = torch.randn(8192, 1024, device="cuda")
"""
TENSOR = """
x = torch.randn(1024, 1024, device="cuda")
"""
TWO_TENSORS = """
for _ in range(2):
    held = torch.empty(1000, 1000, 300, device="cuda")
"""
FREED = """
device = torch.device("cuda")
freed = torch.empty(100 << 20, device=device)
del freed
"""
REFUSES = """
def refuses(left, right):
    try:
        left + right
    except RuntimeError as error:
        return str(error).startswith("Expected all tensors to be on the same device")
"""

CASES: dict[tuple[str, int], list[Case]] = {
    (WINDOWS, 1): [
        Case(
            before=NO_SLEEP,
            after="assert i == 6 and data_batch.is_pinned() and data_batch.shape == (8, 13107200)",
            options=(*WDDM, "64GiB"),
            prints=says("10000.00", *"1234567"),
        ),
        Case(
            before=NO_SLEEP,
            options=(*WDDM, "2GiB"),
            prints=says("half of the host's memory, which GPUs may share, is spent"),
        ),
    ],
    (WINDOWS, 2): [
        Case(after=REFUSED, prints=SAYS_REFUSED),
        Case(after=FITS, options=(*WDDM, "128GiB")),
        Case(after=REFUSED, options=(*WDDM, "32GiB"), prints=SAYS_REFUSED),
        Case(after=FITS, options=(*SPILL, "64GiB")),
        Case(after=REFUSED, options=(*SPILL, "16GiB"), prints=SAYS_REFUSED),
    ],
    (TUTORIAL, 1): [
        Case(
            after=REFUSES
            + """
assert refuses(x, torch.randn(3, 4)) and refuses(x, torch.randn(3, 4, device="cuda:1"))
assert (x_cpu.device.type, x_gpu.device.index) == ("cpu", 0)
""",
            options=TWO,
            prints=says("cuda:0", "True"),
        )
    ],
    (TUTORIAL, 2): [
        Case(
            after="""
devices = [str(tensor.device) for tensor in (x_gpu, y_cpu, x_gpu0, x_gpu1)]
assert devices == ["cuda:0", "cpu", "cuda:0", "cuda:1"]
assert x_gpu.to("cuda") is x_gpu
""",
            options=TWO,
        )
    ],
    (TUTORIAL, 3): [
        Case(
            before="assert not torch.cuda.is_initialized()",
            after="assert torch.cuda.is_initialized()",
            prints=says("8.00", "20.97"),
        )
    ],
    (TUTORIAL, 4): [
        Case(
            inside={
                "torch.cuda.empty_cache()": """
assert torch.cuda.memory_allocated() == 0
assert torch.cuda.memory_reserved() == 20 << 20
""",
                # The snippet deletes `x` twice. TENSOR makes `x` again before the second deletion.
                "torch.cuda.synchronize()": "assert torch.cuda.memory_reserved() == 0" + TENSOR,
            },
            after="assert torch.cuda.memory_reserved() == 0",
        )
    ],
    (TUTORIAL, 5): [
        Case(
            before='held = torch.empty(1000, 1000, 300, device="cuda")',
            prints=says("1.20", "1.20", "16.93"),
        )
    ],
    (TUTORIAL, 6): [
        Case(
            before=TWO_TENSORS,
            after="assert all(isinstance(value, int) for value in stats.values())",
            prints=lambda output: (
                says("2.40", "2.40", "0", "device ID 0")(output)
                and summaries(output) == [(1144, 2292)]
            ),
        )
    ],
    (TUTORIAL, 7): [
        Case(
            inside={
                "torch.cuda.memory._dump_snapshot": """
def train():
    model = torch.nn.Linear(1000, 1000, device="cuda")
    for _ in range(3):
        model(torch.randn(64, 1000, device="cuda")).sum().backward()

train()
"""
            },
            after="""
import pickle
with open("memory_snapshot.pickle", "rb") as file:
    (trace,) = pickle.load(file)["device_traces"]
allocs = [event for event in trace if event["action"] == "alloc"]
frames = [frame for event in allocs for frame in event["frames"]]
assert len(allocs) > 3
assert {frame["name"] for frame in frames if frame["filename"] == __file__} == {"train", "<module>"}
""",
        )
    ],
    (TUTORIAL, 8): [
        Case(
            after="assert torch.cuda.current_device() == 0",
            options=TWO,
            prints=says("2", "0", "cuda:1"),
        )
    ],
    (TUTORIAL, 9): [
        Case(after=REFUSES + "assert y.device.index == 0 and refuses(x_gpu0, x_gpu1)", options=TWO)
    ],
    (TUTORIAL, 10): [
        Case(after=REFUSED + TENSOR, prints=lambda output: output != ""),
        Case(
            after='assert torch.cuda.memory_stats()["num_ooms"] == 0',
            gpu="H100",
            prints=lambda output: output == "",
        ),
    ],
    (TUTORIAL, 11): [
        Case(before="LEAKS = True" + MODEL, prints=warns),
        Case(before="LEAKS = False" + MODEL, prints=lambda output: output == ""),
    ],
    (TUTORIAL, 12): [
        Case(
            after="""
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
begin.record()
y = x @ x.T
end.record()
assert not end.query()
torch.cuda.synchronize()
assert end.query() and begin.elapsed_time(end) > 0
""",
            prints=lambda output: len(re.findall(r"\d+\.\d{6}s", output)) == 2,
        )
    ],
    (TUTORIAL, 13): [
        Case(
            after="""
from torch.utils.data import DataLoader, TensorDataset
dataset = TensorDataset(torch.arange(320.0).reshape(320, 1), torch.arange(320))
batches = list(PrefetchLoader(map(tuple, DataLoader(dataset, batch_size=32)), device="cuda"))
assert [int(target[0]) for _, target in batches] == list(range(0, 320, 32))
assert {(str(data.device), tuple(data.shape)) for data, _ in batches} == {("cuda:0", (32, 1))}
tensors = [torch.full((4,), float(number)) for number in range(5)]
assert [batch[0].item() for batch in PrefetchLoader(tensors, "cuda")] == [0, 1, 2, 3, 4]
"""
        )
    ],
    (MECHANISM, 1): [
        Case(
            before="assert torch.cuda.memory_allocated() == 0",
            after="assert torch.cuda.memory_allocated() == 4 << 20",
        )
    ],
    (MECHANISM, 2): [
        Case(
            inside={"del x": "address = x.data_ptr()"},
            after="""
assert y.data_ptr() == address
assert torch.cuda.memory_stats()["num_device_alloc"] == 1
""",
        )
    ],
    (MECHANISM, 3): [
        Case(
            before="""
x, kept = (torch.empty(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(2))
del x
free = torch.cuda.mem_get_info()[0]
assert torch.cuda.memory_reserved() == 128 << 20
""",
            after="""
assert torch.cuda.memory_allocated() == torch.cuda.memory_reserved() == 64 << 20
assert torch.cuda.mem_get_info()[0] - free == 64 << 20
""",
        )
    ],
    (MECHANISM, 4): [Case(before=TENSOR, prints=says(f"{4 << 20}", f"{20 << 20}"))],
    (MECHANISM, 5): [
        Case(
            after="""
assert (x.device, y.device) == (device1, device2)
del x
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved(device1) == 0
assert torch.cuda.memory_allocated(device2) == 4 << 20
assert torch.cuda.memory_reserved(device2) == 20 << 20
""",
            options=TWO,
        )
    ],
    (MECHANISM, 6): [
        Case(
            before=LAYERS
            + """
before = torch.cuda.memory_allocated()
output = model(input)
full = torch.cuda.memory_allocated() - before
assert output.dtype == torch.float32
del output
before = torch.cuda.memory_allocated()
""",
            after="""
assert output.dtype == torch.float16
assert torch.cuda.memory_allocated() - before < full * 0.7
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler.scale(output.float().mean()).backward()
scaler.step(optimizer)
scaler.update()
assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.float32}
""",
        )
    ],
    (MECHANISM, 7): [
        Case(
            after="""
total = torch.cuda.get_device_properties(0).total_memory
x = torch.empty(int(total * 0.75), dtype=torch.uint8, device="cuda")
del x
try:
    torch.empty(int(total * 0.85), dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError as error:
    print(error)
""",
            prints=says("CUDA out of memory. Tried to allocate 13.40 GiB", "12.61 GiB allowed"),
        )
    ],
    (MECHANISM, 8): [
        Case(
            before=TENSOR,
            prints=lambda output: summaries(output) == [(4, 20)] and "from large pool" in output,
        )
    ],
    (MECHANISM, 9): [
        Case(
            before=LAYERS
            + """
before = torch.cuda.memory_allocated()
loss = model(input).sum()
assert torch.cuda.memory_allocated() - before > 7 * (32 << 20)
""",
            after="""
torch._C._cuda_clearCublasWorkspaces()
assert torch.cuda.memory_allocated() - before <= 512  # the loss
""",
        )
    ],
    (SMI, 1): [Case(prints=summarizes((0, 0), (400, 400), (0, 400), (200, 400)))],
    (SMI, 2): [
        Case(
            before=FREED + "print(torch.cuda.memory_summary())", prints=summarizes((0, 400), (0, 0))
        ),
        # A tensor in a part of a segment keeps the whole segment reserved. In an expandable segment
        # it keeps only its own part reserved.
        Case(
            before=FREED + "half = torch.empty(50 << 20, device=device)",
            prints=summarizes((200, 400)),
        ),
        Case(
            before=FREED + "half = torch.empty(50 << 20, device=device)",
            options=("--conf", "expandable_segments:True"),
            prints=summarizes((200, 200)),
        ),
    ],
    (PREALLOCATION, 1): [
        Case(after='assert torch.cuda.memory_stats()["num_device_alloc"] == 1'),
        Case(
            after='assert torch.cuda.memory_stats()["num_device_alloc"] == 10',
            options=("--allocator", "uncached"),
        ),
    ],
    # The article guesses that PyTorch reserves 512 MiB. In fact PyTorch rounds the 381.5 MiB of the
    # tensor up to a multiple of 2 MiB.
    (PREALLOCATION, 2): [Case(prints=says("0.00", "382.00", "382.00", "0.00"))],
}
