"""Finds the parts of the simulated program that could be changed."""
