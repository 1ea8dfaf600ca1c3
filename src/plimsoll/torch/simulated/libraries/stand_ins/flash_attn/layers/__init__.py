"""flash-attn's layers: those that the stand-in has."""
