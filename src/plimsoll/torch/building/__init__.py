"""Compiling against the installed PyTorch."""
