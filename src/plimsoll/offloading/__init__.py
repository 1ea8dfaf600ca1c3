"""Functions that reduce a program's memory on the card.

Begin with `offload` and `pager`: they move the tensors that autograd saves to host memory and back.

The packages: `tiers` uses host memory as a second tier (limits, regions, the optimizer's state),
`training` makes training steps that need less memory, `data` copies batches ahead of their use.
"""
