"""Errors, units, files and text, which every other room uses.

`telemetry` publishes the counters of a running program. `workers` calls a function for many items
in other processes.
"""
