"""Finds options and cards with which a serving engine serves, by running the engine.

Begin with `engine_fit`. Each search is a `Bisection` or goes through a list in order.
`engine_trials` runs the engine, each command only once, and `engine_fit_text` formats the answer.
"""
