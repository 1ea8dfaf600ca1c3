"""The layers of flash-attn that the stand-in has."""
