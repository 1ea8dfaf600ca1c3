"""Calls a function for many items, in processes of this machine or on Ray.

Begin with `everywhere`.
"""
