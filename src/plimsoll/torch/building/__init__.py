"""Libraries compiled against the installed PyTorch, in a folder that only their user can write to.

Begin with `compiler`; `prebuilt` finds the libraries in a wheel, `versions` PyTorch's version.
"""
