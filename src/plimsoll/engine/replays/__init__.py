"""Replays a recorded history under any allocator, configuration, limit and GPU size.

Begin with `replay`.
"""
