"""Finds the memory blocks of a recording: when each was live, and what it was used for.

The input is columns of events, the output is tables; nothing is printed. Begin with `lifetimes`,
which describes all blocks of a history at once; `block_history` reads a history one stretch at a
time. `categories` has the rules that find each block's use; `evidence` collects facts for them.
"""
