"""Functions that reduce a program's memory on the card.

Begin with `offload` and `pager`: saved tensors move to host memory and back.

The packages are host memory as a second tier (`tiers`: limits, regions, the optimizer's state),
training steps that need less memory (`training`), and batches that are copied ahead (`data`).
"""
