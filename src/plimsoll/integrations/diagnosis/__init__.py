"""Diagnoses this machine: what works, and a command that repairs what does not."""
