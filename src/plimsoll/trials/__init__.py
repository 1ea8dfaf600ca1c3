"""Trials: a program runs, and what it changes is thrown away.

A holder process keeps the program apart from the world by what the kernel offers, see `kinds`, ends
all that it started, and says what it would have changed.
"""
