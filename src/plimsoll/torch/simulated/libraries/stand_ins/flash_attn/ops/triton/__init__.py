"""The Triton operations of flash-attn that the stand-in has."""
