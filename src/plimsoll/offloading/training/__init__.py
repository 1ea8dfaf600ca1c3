"""Training steps with less memory and the same results: begin with `recompute`.

`recompute` computes modules again in the backward pass, `split_batch` takes a batch in parts, and a
loss is computed in chunks, with the logits (`cross_entropy`) or without them (`fused_loss`).
"""
