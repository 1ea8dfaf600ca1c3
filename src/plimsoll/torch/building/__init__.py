"""Libraries compiled against the installed PyTorch, in a folder that only their user can write to.

Begin with `compiler`; `versions` knows the versions of PyTorch.
"""
