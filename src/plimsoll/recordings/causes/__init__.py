"""Explains in a sentence why a program takes its memory, with the change that would help.

Each *recogniser* is a file with one function that takes `Facts` and returns its cause, or None.
Begin with `cause.py`, the contract; `recognisers.py` lists all recognisers and sorts their causes.
The recognisers examine both predicted programs and recordings. Some recognisers need facts that the
program's requests do not show. `Notes` holds these facts; only a prediction knows all of them.

`kept_values` reads the source for advice on tensors that a loop keeps. For it, `value_uses` follows
what the program does with them, `variables` says where a name holds the same value, `known_calls`
lists functions, and `handed_states` finds states that a pass hands to the next one.
"""
