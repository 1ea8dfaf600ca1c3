"""Makes a script fit a card: chooses the value of an argument, or changes the script's text.

`values` varies an argument. `plan_search` tries changes of the text, each on a copy of the script.
In `changes` each kind of change has a file of its own; `changes.jobs` collects those for jobs.
`known_sets` estimates the memory and time of untried sets of changes from the tried sets, and
`sets_to_try` chooses the next sets.
`plan_text` formats the answer, `front_picture` draws memory against time, and `plan_command` makes
the command that runs the changed script.
"""
