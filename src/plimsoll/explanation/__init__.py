"""Why a program's GPU memory was used as it was, and what would help.

Begin with `explain`. Each file answers one question about one device (`explained_device`). Replays
test each piece of advice, and `fitting` tests each change of a script. `ranking` sorts the advice.
"""
