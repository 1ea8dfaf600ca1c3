"""Simulates what other libraries need: their own kernels, missing packages, missing files."""
