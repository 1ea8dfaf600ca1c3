"""Explains in a sentence why a program takes its memory, with the change that would help.

Each *recogniser* is a file with one function that takes `Facts` and returns its cause, or None.
Begin with `cause.py`, the contract; `recognisers.py` lists all recognisers and sorts their causes.
The recognisers examine both predicted programs and recordings. Some recognisers need facts that the
program's requests do not show. `Notes` holds these facts; only a prediction knows all of them.
"""
