"""Libraries compiled against the installed PyTorch, in a folder that only their user can write to.

Begin with `compiler`; `prebuilt` knows the libraries that a wheel brings, `versions` PyTorch's.
"""
