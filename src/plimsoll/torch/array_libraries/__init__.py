"""Libraries beside PyTorch whose arrays take their memory from plimsoll's engines.

`serving` lists the libraries; each has a file that implements its interface. `device_blocks` is
shared by all: a block, and the time from which its memory may be reused.
"""
