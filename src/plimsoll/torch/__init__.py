"""The packages that know PyTorch's internals. They import PyTorch only when a function needs it.

`building` compiles libraries against the installed PyTorch. `live` puts plimsoll's allocator under
PyTorch on a real GPU, `simulated` gives PyTorch CUDA devices without a GPU, and `array_libraries`
serves CuPy, Numba and RMM. `session` combines them for a program.
"""
