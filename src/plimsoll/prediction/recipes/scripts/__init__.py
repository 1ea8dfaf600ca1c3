"""The recipes: scripts that stand alone, to be run, or written out and changed.

What several of them need stands in each, word for word.
"""
