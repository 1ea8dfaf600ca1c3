"""Compares recordings of many ranks: which ran out of memory, which stand out, which are alike.

Begin with `explain_ranks`. It makes a small `rank_summary` of each rank; `passing` reads a rank's
history once, without keeping it in memory. `behaviour` and `rank_groups` put ranks that behave
alike into one group; `outliers` and `spread` find ranks that differ from their group. `rank_files`
lists a folder or an object store.
"""
