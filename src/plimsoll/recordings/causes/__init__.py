"""Explains in a sentence why a program takes its memory, with the change that would help.

Each *recogniser* is a file with one function that takes `Facts` and returns its cause, or None.
Begin with `cause.py`, the contract; `recognisers.py` lists all recognisers and sorts their causes.
Both predictions and recordings use them. `Notes` holds facts that the running program reported. It
is complete only in predictions.
"""
