"""Tells the user whether the plan of a process fits the running program.

A plan has an address for each large request of a program.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError
from plimsoll.base.printable import printable
from plimsoll.base.telemetry.nvml import Nvml
from plimsoll.engine.gpus.profiles import gpu_profile
from plimsoll.engine.plans.plan_file import read_plan
from plimsoll.engine.plans.program_plan import MadeFor, made_for
from plimsoll.torch.building.versions import rules_version

if TYPE_CHECKING:
    from plimsoll.torch.live.live_engines import LiveEngines


def tell_of_plan(engines: LiveEngines, plan: str, *, is_summarized: bool) -> None:
    """Prints a line if the plan was made for a program other than the running one.

    At exit, prints a line for each GPU whose engine stopped following the plan, because too
    little memory got its planned address.

    Args:
        engines: The engines that follow the plan.
        plan: The plan's file.
        is_summarized: Whether the summary at exit already says how well the plan fitted; if so,
            nothing more is printed at exit.
    """
    if difference := read_plan(plan).made_for.difference(_running_program()):
        print(printable(f"plimsoll: {plan} is a plan {difference}"), file=sys.stderr)
    if not is_summarized:
        Finalize(None, _tell_dropped, (engines,), exitpriority=2)


def _tell_dropped(engines: LiveEngines) -> None:
    for device, use in engines.plan_uses().items():
        if use.dropped_after is not None:
            print(f"plimsoll: GPU {device}: {use.line()}", file=sys.stderr)


def _running_program() -> MadeFor:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    script = spec.name.removesuffix(".__main__") if spec is not None else "".join(sys.argv[:1])
    version = gpu = None
    with suppress(InputError, IndexError):
        gpu = gpu_profile(Nvml().read().gpus[0].name).name
    with suppress(InputError):  # raised if PyTorch is missing or too old
        version = rules_version()
    return made_for(script or None, tuple(sys.argv[1:]), version, gpu)
