"""Has the functions that a program calls first: `install`, `record`, `simulate`.

`inherited`, with the `sitecustomize` in `site`, passes the simulation on to processes that the
program starts. `environment` reads the variable that asks for a recording.
"""
