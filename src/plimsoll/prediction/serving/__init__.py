"""Finds options and cards with which a serving engine serves, by running the engine.

`engine_fit` answers; each search is a `Bisection` or goes through a list in order. `engine_trials`
runs the engine, as cases of a sweep, and runs no case twice. `engine_fit_text` formats the answer.
"""
