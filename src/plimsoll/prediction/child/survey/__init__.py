"""Finds the parts of a simulated program that the user could change to save memory."""
