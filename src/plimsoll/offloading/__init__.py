"""Saved tensors to the host's memory and back."""
