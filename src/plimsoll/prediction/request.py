"""What the process that runs a script is asked for."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

BAD_INPUT = 2
"""Its exit status when the request cannot be met."""


@dataclass(frozen=True)
class Request:
    """What to run.

    Attributes:
        script: The script's path, or a module's name.
        arguments: Its arguments.
        gpus: Names of the cards, one a device.
        driver: "linux" or "wddm".
        conf: As PYTORCH_CUDA_ALLOC_CONF.
        allocator: "native", "elastic" or "uncached".
        policy: "strict" or "spill".
        dedicated_bytes: What of each card's memory there is for the program; None for all.
        host_memory_bytes: Of the simulated machine; None for this one's.
        is_module: The script is a module, run as `python -m` does.
        unlimited: The cards have all the memory that is asked for.
        report: Where to write what was found, or None.
        account: Where the process says what it used, as PLIMSOLL_REPORT; None for nowhere.
        parent: The process with whose end this one ends, or None.
    """

    script: str
    arguments: list[str]
    gpus: list[str]
    driver: str = "linux"
    conf: str = ""
    allocator: str = "native"
    policy: str = "strict"
    dedicated_bytes: int | None = None
    host_memory_bytes: int | None = None
    is_module: bool = False
    unlimited: bool = False
    report: str | None = None
    account: str | None = None
    parent: int | None = None

    def to_json(self) -> str:
        """For the child process."""
        return json.dumps(asdict(self))
