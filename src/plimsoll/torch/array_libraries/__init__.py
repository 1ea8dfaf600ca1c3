"""Makes array libraries other than PyTorch take their memory from plimsoll's engines.

`serving` lists the libraries; each has a file that implements its interface. All use
`device_blocks`, which allocates blocks of memory and decides when they may be reused.
"""
