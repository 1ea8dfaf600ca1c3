"""Functions by which a program takes less memory on the card.

Begin with `offload` and `pager`: saved tensors move to the host's memory and back.

The packages are host memory as a second tier (`tiers`: limits, regions, the optimizer's state),
training steps that take less (`training`), and batches that are copied ahead (`data`).
"""
