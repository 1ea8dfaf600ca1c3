"""Shows that a process can be limited to a part of the card."""

import torch


def ask(part: float) -> str:
    try:
        torch.empty(int(total * part), dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError as error:
        return str(error)
    return "works"


total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction(0.8, device="cuda:0")
print("three quarters:", ask(0.75))
print("more than the part:", ask(0.85))
torch.cuda.set_per_process_memory_fraction(1.0)
print("without a limit:", ask(0.85))
