"""Makes a script fit a card, by the value of an argument or by changes of its text.

`values` varies an argument. `plan_search` tries changes of the text, each on a copy of the script;
the changes are in `changes`, each kind in a file of its own, and those for jobs in `changes.jobs`.
`known_sets` estimates the memory and time of untried sets of changes from the tried sets, and
`sets_to_try` chooses the next sets.
`plan_text` formats the answer, `front_picture` draws memory against time, and `plan_command` makes
the command that runs the changed script.
"""
