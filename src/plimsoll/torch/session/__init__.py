"""The functions that a program calls first: `install`, `record`, simulated GPUs.

Processes that the program starts get the same, through `inherited` and the `sitecustomize` in
`site`; `environment` reads the variables that request it.
"""
