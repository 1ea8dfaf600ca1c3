"""Calls a function once for each of many items, in parallel processes on this machine or on Ray.

Begin with `everywhere`.
"""
