"""The recipes: scripts that stand alone, to be run, or written out and changed.

Code that several of them need is repeated in each.
"""
