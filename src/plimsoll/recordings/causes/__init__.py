"""Why a program's memory is what it is, in a sentence, and the change that would help.

Each recogniser is a file with one function: it looks at `Facts` and finds its cause, or none. Begin
with `cause.py`, the contract; `recognisers.py` lists them and puts what they find in order. They
serve predictions, which know what the program itself noted, and recordings, which may not.
"""
