"""Compiles libraries against the installed PyTorch, and caches them in a folder of the user.

Read `compiler` first. `prebuilt` finds libraries that a wheel contains. `versions` knows PyTorch's
version.
"""
