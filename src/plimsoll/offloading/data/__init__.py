"""Copies batches to the GPU before they are needed, from page-locked memory.

Begin with `loader`.
"""
