"""Training steps that take less memory and give the same results: begin with `recompute`.

Modules are computed again (`recompute`), a batch is taken in parts (`split_batch`), and a loss in
chunks, with the logits (`cross_entropy`) or without them (`fused_loss`).
"""
