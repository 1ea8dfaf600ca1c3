"""Libraries beside PyTorch whose arrays take their memory from plimsoll's engines.

`serving` says which; each has a file that speaks its interface, and `device_blocks` is what they
share: a block, and when its memory may be used again.
"""
