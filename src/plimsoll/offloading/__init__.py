"""Functions that reduce a program's memory on the card.

Begin with the modules `offload` and `pager`. Autograd saves tensors for the backward pass; these
modules move such tensors to host memory, and back to the card before the backward pass reads them.

There are three packages. `tiers` uses host memory as a second tier (limits, regions, the
optimizer's state). `training` builds training steps that need less memory. `data` copies batches to
the GPU before they are needed.
"""
