"""Copies batches to the GPU before they are needed, out of page-locked memory.

Begin with `loader`.
"""
