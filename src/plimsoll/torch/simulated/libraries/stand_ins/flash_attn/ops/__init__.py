"""The operations of flash-attn that the stand-in has."""
