"""From the events of a recording to the memory that was live, when, and for what.

Events come in as columns, tables go out; nothing is printed. Begin with `lifetimes`, which takes a
history at once; `block_history` takes it stretch by stretch. `categories` has one set of rules for
what memory is for, and `evidence` is what those rules know of each block.
"""
