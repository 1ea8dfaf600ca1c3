"""Errors, units, files and text, which every other top-level package uses.

`telemetry` publishes the counters of a running program. `workers` calls a function for each of many
items, in other processes.
"""
