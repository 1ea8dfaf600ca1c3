"""Finds the parts of a simulated program that could be changed, while it runs."""
