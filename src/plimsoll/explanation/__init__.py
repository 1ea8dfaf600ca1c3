"""Explains why a program used GPU memory as it did, and what would help.

Begin with `explain`. Each file answers one question about one device (`explained_device`). Each
piece of advice is tested by a replay, or by a simulated run of the changed script
(`script_changes`). `ranking` sorts the advice.
"""
