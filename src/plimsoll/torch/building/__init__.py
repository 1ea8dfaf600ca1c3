"""Compiles libraries against the installed PyTorch; keeps them in a folder of the user's own.

Begin with `compiler`. `prebuilt` finds libraries that a wheel contains, `versions` knows PyTorch's
version.
"""
