"""Compares recordings of many ranks: which ran out of memory, which stand out, which are alike.

Begin with `explain_ranks`. `passing` makes a small `rank_summary` of each rank while reading its
history. `behaviour` and `rank_groups` find equal ranks, `outliers` and `spread` different ones.
`rank_files` lists a folder or an object store.
"""
