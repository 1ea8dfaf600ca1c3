"""Explains why a program used GPU memory as it did, and what would help.

Begin with `explain.py`, which calls the other files. `explained_device.py` chooses the device to
explain, and most other files answer one question about that device. Each piece of advice is tested
by a replay, or by a simulated run of the changed script (`script_changes.py`). `ranking.py` sorts
the advice.
"""
