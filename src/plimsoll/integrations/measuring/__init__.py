"""Measures a card of this machine, so that predictions for it need no guesses.

Begin with `measure.py`, which starts a process for each part; `on_card.py` is that process's
program. `contexts.py` measures the memory of a process before its first tensor, and `rates.py` the
card's speed. `convolutions.py` and `attention_calls.py` measure the workspaces of kernels, and
`nccl_ranks.py` NCCL's buffers. `idle.py` looks for other processes on the card.
"""
