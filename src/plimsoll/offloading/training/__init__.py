"""Training steps with less memory and the same results: begin with `recompute`.

`recompute` computes modules again in the backward pass. `split_batch` splits a batch into parts.
`cross_entropy` computes a loss from given logits in chunks. `fused_loss` computes the logits in
chunks too, so that only one chunk's logits exist at a time.
"""
