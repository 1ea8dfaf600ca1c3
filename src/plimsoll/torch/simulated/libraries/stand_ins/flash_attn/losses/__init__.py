"""The losses of flash-attn that the stand-in has."""
