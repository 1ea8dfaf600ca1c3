"""Calls a function with many items, in processes of this machine or on Ray.

Begin with `everywhere`.
"""
