"""Compiles libraries against the installed PyTorch; keeps them where only their user can write.

Begin with `compiler`. `prebuilt` finds libraries that a wheel contains, `versions` knows PyTorch's
version.
"""
