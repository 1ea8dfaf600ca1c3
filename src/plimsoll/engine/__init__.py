"""The engines of this process, real or simulated, and their state in PyTorch's formats.

An engine is an allocator together with the driver, real or simulated, that it takes memory from.
Begin with `protocol`. `tensor_uses` finds which tensors are parameters, gradients and optimizer
state. `gpus` has the data of each card. `simulator` is an engine with the interface of
`torch.cuda`. `recorder` writes events to a file. `plans` has plans: the address of each large
request, chosen before a program runs. `replays` feeds recorded memory events to an engine.
"""
