"""Finds the best card and configuration by many predictions and replays.

`sweep_plan` is the product of scripts, recordings, arguments, cards, configurations and allocators;
`sweep` runs it. The table is complete at any time (`results_file`); `program_digest` detects rows
that are out of date.
"""
