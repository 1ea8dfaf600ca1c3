"""Shows how PyTorch places tensors on devices.

A tensor keeps its device. Operands must be on the same device. Each device has its own cache.
"""

import torch


def mixed(left: torch.Tensor, right: torch.Tensor) -> str:
    try:
        left + right
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return "works"


print("devices:", torch.cuda.device_count())
print("current:", torch.cuda.current_device())
with torch.cuda.device(1):
    print("inside:", torch.randn(100, device="cuda").device, torch.cuda.current_device())
print("outside:", torch.randn(100, device="cuda").device, torch.cuda.current_device())

host = torch.randn(3, 4)
first = torch.randn(3, 4, device="cuda:0")
second = torch.randn(3, 4, device="cuda:1")
print("made on:", host.device, first.device, second.device)
print("is_cuda:", host.is_cuda, first.is_cuda, second.is_cuda)
print("moved to:", host.to("cuda").device, host.cuda(1).device, first.to("cuda:1").device)
print("there and back:", torch.equal(host.to("cuda:0").to("cuda:1").to("cpu"), host))
print("no copy:", first.to("cuda") is first, first.cuda(0) is first)

print("cuda:0 + cpu:", mixed(first, host))
print("cuda:0 + cuda:1:", mixed(first, second))
print("cpu + cuda:1:", mixed(host, second))
print("cuda:0 + moved:", mixed(first, second.to("cuda:0")), (first + second.to("cuda:0")).device)
try:
    first @ host.T
except RuntimeError as error:
    print("cuda:0 @ cpu:", error)

del first, second
for device in range(2):
    torch.cuda.set_device(device)
    torch.cuda.empty_cache()
tensors = [torch.empty(1024, 1024, device=f"cuda:{device}") for device in range(2)]
tensors.pop(0)
torch.cuda.set_device(0)
torch.cuda.empty_cache()
for device in range(2):
    allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    print(f"cache of {device}:", allocated, reserved)
