"""Measures a card of this machine, so that predictions for it rely less on estimates.

Begin with `measure.py`. It starts a process for each part, which runs `on_card.py`. `contexts.py`
measures the memory of a process before its first tensor. `rates.py` measures the card's speed,
`convolutions.py` and `attention_calls.py` the workspaces of kernels, and `nccl_ranks.py` NCCL's
buffers. `idle.py` looks for other processes on the card.
"""
