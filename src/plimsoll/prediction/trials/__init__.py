"""Trials: a program runs, and its changes to files are deleted.

A `holder` process keeps the program apart by the strongest means that the kernel offers (`means`):
an `overlay` in `namespaces`, a `wall` around the `scratch_layer`, or the layer alone. It ends all
processes that the program started, and reports the `outcome`. Begin with `trial` and `holder`.
"""
