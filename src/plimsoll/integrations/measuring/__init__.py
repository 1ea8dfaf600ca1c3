"""A card of this machine, measured, so that predictions for it need no guesses.

Begin with `measure.py`, which starts a process for each part. `on_card.py` is that process. The
parts: `contexts.py`, what a process takes before its first tensor; `rates.py`, how fast the card
is; `convolutions.py` and `attention_calls.py`, what kernels take besides their operands;
`nccl_ranks.py`. `idle.py` looks for other processes on the card.
"""
