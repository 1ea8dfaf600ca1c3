"""Explains in a sentence why a program takes its memory, with the change that would help.

Each recogniser is a file with one function, which finds its cause in `Facts`, or none. Begin with
`cause.py`, the contract; `recognisers.py` lists them and sorts their causes. They serve
predictions, which have notes of the program itself, and recordings, which may not.
"""
