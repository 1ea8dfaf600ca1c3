"""Reads the state of this machine's GPUs and processes, repeatedly."""

from __future__ import annotations

from plimsoll.base.telemetry.counters import read_processes
from plimsoll.base.telemetry.identity import program_name
from plimsoll.base.telemetry.nvml import Nvml
from plimsoll.integrations.top.model import Machine, put_together


class Watch:
    """Reads this machine's state. Keeps NVML open between reads."""

    def __init__(self, nvml: Nvml | None = None) -> None:
        self._nvml = nvml or Nvml()

    def look(self) -> Machine:
        """Returns the present state of this machine."""
        return put_together(self._nvml.read(), read_processes(), program_of=program_name)
