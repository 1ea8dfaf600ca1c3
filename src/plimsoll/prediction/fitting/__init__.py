"""How a script fits a card: with which value of an argument, or with which changes of its text.

`values` varies an argument. `plan_search` tries changes of the text (`changes`, one kind a file;
`jobs` has those of jobs), each on a copy of the script; `known_sets` predicts sets of changes from
those that were tried, and `sets_to_try` chooses the next one. `plan_text` has the answer in words,
`front_picture` memory against time, `plan_command` the command that runs it.
"""
