"""Replays recorded memory events with any allocator, configuration, limit and GPU memory size.

Begin with `replay`.
"""
