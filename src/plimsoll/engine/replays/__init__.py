"""Replays a recorded history with any allocator, configuration, limit and size of GPU.

Begin with `replay`.
"""
