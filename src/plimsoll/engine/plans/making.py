"""Makes plans from recordings of real and simulated runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll import _core
from plimsoll.base.errors import InputError
from plimsoll.engine.gpus.recorded_card import recorded_card
from plimsoll.engine.plans.program_plan import MadeFor, Plan, RankPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.recordings.recording import DeviceTrace, Recording


def plan_of(recordings: Sequence[Recording], program: MadeFor | None = None) -> Plan:
    """Makes a program's plan from its recordings, one recording for each rank.

    Args:
        recordings: Each must begin with the first request of its process.
        program: The program that the plan is for. By default, the plan names only the version of
            PyTorch and the card, as the first recording has them.

    Raises:
        InputError: If a recording begins after the first request, two recordings are of the same
            rank, or events contradict each other.
    """
    ranks = tuple(_of_process(each, alone=len(recordings) == 1) for each in recordings)
    if len({each.rank for each in ranks}) < len(ranks):
        raise InputError(
            "two of these recordings are of the same rank; a plan takes one for each rank"
        )
    return Plan(program or program_of(recordings[0]), ranks)


def program_of(recording: Recording) -> MadeFor:
    """Returns the version of PyTorch and the card that a recording names."""
    card = next(
        (recorded_card(recording.settings, trace.device) for trace in recording.devices), None
    )
    # A recording without "allocator" in its settings is PyTorch's own snapshot, which does not name
    # PyTorch's version.
    torch = recording.version if "allocator" in recording.settings else None
    return MadeFor(torch=torch, gpu=None if card is None else card.name)


def _of_process(recording: Recording, *, alone: bool) -> RankPlan:
    rank = None if recording.process is None else recording.process.rank
    if rank is None and not alone:
        raise InputError(f"{recording.name}: does not say which rank it is of")
    devices = {}
    for trace in recording.devices:
        try:
            if plan := _of_device(trace, recording):
                devices[trace.device] = plan
        except (InputError, _core.ReplayError) as error:
            raise InputError(f"{recording.name}: device {trace.device}: {error}") from None
    if not devices:
        raise InputError(f"{recording.name}: has no request above 1 MiB to plan")
    return RankPlan(rank, devices)


def _of_device(trace: DeviceTrace, recording: Recording) -> _core.ProgramPlan | None:
    if trace.start(recording.conf, recording.version):
        raise InputError(
            "the recording begins after the first request, so no plan can be made from it"
        )
    maker = _core.PlanMaker()
    for batch in trace.batches():
        maker.feed(batch.to_core())
    plan = maker.plan()
    return plan if any(slots for _, slots, _ in plan.streams) else None
