"""Training steps with less memory and the same results: begin with `recompute`.

`recompute` computes modules again in the backward pass. `split_batch` splits a batch into parts.
`cross_entropy` computes a loss from logits in chunks; `fused_loss` does the same and never holds
all logits.
"""
