"""Starts recording before PyTorch is imported, and trains two steps."""

import runpy
from pathlib import Path

import plimsoll

with plimsoll.record("run.plim"):
    runpy.run_path(str(Path(__file__).with_name("trains.py")))["train"](2)
