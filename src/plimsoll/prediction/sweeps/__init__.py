"""Which card and which configuration: many predictions and replays, and the best of them.

`sweep_plan` is the product of scripts, recordings, arguments, cards, configurations and allocators;
`sweep` runs it. The table is complete at any time (`results_file`); `program_digest` tells which
rows are out of date.
"""
