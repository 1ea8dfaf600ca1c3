"""Compares recordings of many ranks: which ran out of memory, which stand out, which are alike.

Begin with `explain_ranks`. It makes a small `rank_summary` of each rank, whose history is read once
and not kept (`passing`). `behaviour` and `rank_groups` find equal ranks; `outliers` and `spread`
find ranks that differ. `rank_files` lists a folder or an object store.
"""
