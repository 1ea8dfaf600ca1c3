"""Everything that knows PyTorch's insides; PyTorch is imported when a function needs it.

`building` compiles libraries against the installed PyTorch. `live` puts plimsoll's allocator under
PyTorch on a real GPU, `simulated` gives PyTorch CUDA devices without a GPU, and `array_libraries`
serves CuPy, Numba and RMM. `session` puts them together in a program.
"""
