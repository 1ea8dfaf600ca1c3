"""Makes the plan for a predicted program, or for each rank of a job.

A plan says where the elastic allocator places the program's large blocks (docs/plans.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError
from plimsoll.engine.gpus.profiles import gpu_profile
from plimsoll.engine.plans.making import plan_of
from plimsoll.engine.plans.program_plan import made_for
from plimsoll.recordings.reading import read_recording
from plimsoll.torch.building.versions import rules_version

if TYPE_CHECKING:
    from plimsoll.engine.plans.program_plan import MadeFor, Plan
    from plimsoll.prediction.request import Request
    from plimsoll.prediction.results import Prediction


def program_of(request: Request) -> MadeFor:
    """Returns the part of a plan that says for which program the plan was made."""
    gpu = gpu_profile(request.setup.gpus[0]).name
    return made_for(request.script, tuple(request.arguments), rules_version(), gpu)


def predicted_plan(request: Request, found: Prediction) -> Plan:
    """Returns the plan for a program whose simulated run was recorded.

    Args:
        request: The request; `record` is the file of the recording. For a job, the recordings of
            the ranks are beside this file.
        found: The prediction.

    Raises:
        InputError: If the script uses no GPU, or has processes without a rank.
    """
    if not found.uses_cuda:
        raise InputError(f"{found.script} never touches CUDA: there is nothing to plan")
    assert request.record is not None
    file = Path(request.record)
    files = sorted(file.parent.glob(f"{file.stem}.rank*{file.suffix}")) or [file]
    recordings = [read_recording(each) for each in files if each.exists()]
    used = [each for each in recordings if any(trace.event_count for trace in each.devices)]
    if found.processes or not used:
        raise InputError(
            f"{found.script} starts processes that use GPUs and have no rank; a plan is of one "
            "process, or of the ranks of a job"
        )
    return plan_of(used, program_of(request))
