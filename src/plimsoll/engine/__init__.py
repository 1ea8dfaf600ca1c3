"""The engines of this process, real or simulated, and their state in PyTorch's formats.

An engine is an allocator with its driver. Begin with `protocol`. `tensor_uses` finds which tensors
are parameters, gradients and optimizer state. The packages are the cards (`gpus`), an engine with
the interface of `torch.cuda` (`simulator`), the writing of events to a file (`recorder`), plans of
places (`plans`), and replays of recorded histories in an engine (`replays`).
"""
