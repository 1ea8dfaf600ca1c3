"""Runs programs as trials: a program sees its own writes, which are deleted afterwards.

A `holder` process isolates the program by the strongest of three `means` that the machine offers:

- overlay file systems (`overlay`) in `namespaces` of the program's own;
- a library in the program that redirects writes (`scratch_layer`), while the kernel refuses writes
  that bypass the library (`wall`);
- the library alone.

Afterwards the holder ends all processes that the program started, and reports the `outcome`. Begin
with `trial` and `holder`.
"""
