"""The engines of this process, real or simulated, and their state in PyTorch's forms.

Begin with `protocol`. `tensor_uses` is what PyTorch knows of the tensors in the engines. The
packages are the cards (`gpus`), the engine with the interface of `torch.cuda` (`simulator`), events
on their way to a file (`recorder`), plans of places (`plans`), and recorded histories through an
engine (`replays`).
"""
