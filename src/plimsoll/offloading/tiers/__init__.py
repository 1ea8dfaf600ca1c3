"""Host memory as a second tier: limits, named regions, the optimizer's state.

Begin with `limits`.
"""
