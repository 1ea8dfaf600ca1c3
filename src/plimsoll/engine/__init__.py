"""The engines of this process, real or simulated, and their state in PyTorch's forms.

Begin with `protocol`. `tensor_uses` finds the uses of PyTorch's tensors in the engines. The
packages are the cards (`gpus`), an engine with the interface of `torch.cuda` (`simulator`), the
writing of events to a file (`recorder`), plans of places (`plans`), and recorded histories replayed
in an engine (`replays`).
"""
