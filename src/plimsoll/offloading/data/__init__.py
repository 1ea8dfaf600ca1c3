"""Batches that are copied to the GPU ahead, from page-locked memory: begin with `loader`."""
