"""flash-attn's operations: those that the stand-in has."""
