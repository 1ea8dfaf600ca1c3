"""Finds the best card and configuration by many predictions and replays.

`sweep_plan` combines scripts, recordings, arguments, cards, configurations and allocators into
cases; `sweep` runs them. `results_file` keeps the table, which is readable at any time, and
`program_digest` detects rows that are out of date.
"""
