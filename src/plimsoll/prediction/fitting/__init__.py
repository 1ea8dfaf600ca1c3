"""Makes a script fit a card, by the value of an argument or by changes of its text.

`values` varies an argument. `plan_search` tries changes of the text (`changes`, one kind a file;
`jobs` has those of jobs), each on a copy of the script; `known_sets` estimates sets of changes from
tried ones, and `sets_to_try` chooses the next. `plan_text` formats the answer, `front_picture`
draws memory against time, `plan_command` makes the command that runs it.
"""
