"""Plans: the place in memory of each large request of a program, chosen before it runs.

Begin with `program_plan`. `making` makes a plan from a recording of a real or simulated run.
`plan_file` reads and writes plans. `use` says how far a program followed its plan.
"""
