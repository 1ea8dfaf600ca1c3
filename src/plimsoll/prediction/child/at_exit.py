"""What a simulated process used of each GPU, in the form in which a real one tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.telemetry.accounts import Account, make_account

if TYPE_CHECKING:
    from plimsoll.prediction.child.high_water import HighWaterMarks
    from plimsoll.prediction.child.native_replay import NativeReplay
    from plimsoll.torch.simulated.simulation import Simulation


def simulated_accounts(
    simulation: Simulation, high_water: HighWaterMarks, native: NativeReplay | None
) -> list[Account]:
    """One of each GPU that was used."""
    if not simulation.has_contexts:
        return []
    accounts = []
    for device in range(len(simulation.profiles)):
        peak = high_water.of(device)
        if peak.reserved_bytes == 0:
            continue
        figures = {
            "peak_allocated_bytes": peak.allocated_bytes,
            "peak_reserved_bytes": peak.reserved_bytes,
            "peak_shared_reserved_bytes": 0 if peak.shared is None else peak.shared.peak_bytes,
            "card_peak_bytes": high_water.card_bytes(device),
        }
        if native is not None and (replayed := native.of(device)) is not None:
            figures["torch_peak_reserved_bytes"] = replayed.peak_reserved_bytes
            figures["torch_num_ooms"] = replayed.num_ooms
        accounts.append(make_account(simulation.allocator, device, figures))
    return accounts
