"""Plans of places: where each large request of a program lies, known before it runs.

Begin with `program_plan`. A plan is made of a recording, also of a simulated run, by `making`;
`plan_file` reads and writes it; `use` says how far a program followed it.
"""
