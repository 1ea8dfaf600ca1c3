"""Recordings of many ranks beside each other: which ran out, which stand out, which do the same.

Begin with `explain_ranks`. `passing` makes a small `rank_summary` of each rank while its history
goes by; `behaviour` and `rank_groups` find equal ranks, `outliers` and `spread` different ones.
`rank_files` lists a folder or an object store.
"""
