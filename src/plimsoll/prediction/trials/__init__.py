"""Runs programs as trials: a program sees its own writes, which are deleted afterwards.

A `holder` process isolates the program by the strongest means that the machine offers (`means`): an
`overlay` in `namespaces`, a `wall` around the `scratch_layer`, or the layer alone. It ends all
processes that the program started, and reports the `outcome`. Begin with `trial` and `holder`.
"""
