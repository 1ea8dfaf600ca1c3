"""flash-attn's losses: those that the stand-in has."""
