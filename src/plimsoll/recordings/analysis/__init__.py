"""Finds the live memory in a recording's events: when it was live, and its use.

The input is columns of events, the output is tables; nothing is printed. Begin with `lifetimes`,
which takes a history at once; `block_history` takes it one stretch at a time. `categories` has the
rules for the use of memory, and `evidence` the facts about each block that those rules need.
"""
