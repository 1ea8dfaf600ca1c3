"""Makes array libraries other than PyTorch take their memory from plimsoll's engines.

`serving` lists the libraries; each has a file that implements its interface. All use
`device_blocks`: a block of memory, and when its memory may be reused.
"""
