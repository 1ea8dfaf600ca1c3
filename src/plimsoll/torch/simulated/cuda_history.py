"""The memory history of torch.cuda: its recording, snapshots, and the call stacks of blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plimsoll.torch.simulated.simulation import Simulation


def history_functions(simulation: Simulation) -> dict[str, Any]:
    """Returns the members of `torch._C` for the memory history, by name."""
    history = _History(simulation)
    return {
        "_cuda_record_memory_history": history.record,
        "_cuda_record_memory_history_legacy": history.record_legacy,
        "_cuda_isHistoryEnabled": lambda: simulation.keeps_history,
        "_cuda_memorySnapshot": history.snapshot,
        "_cuda_allocationTraceback": history.traceback_of,
    }


class _History:
    """Records the memory history of all devices, and returns snapshots of it."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def record(
        self, enabled: str | None, context: str | None, stacks: str, max_entries: int, *rest: Any
    ) -> None:
        _check_option("state", enabled, ["state", "all", None])
        _check_option("context", context, ["state", "alloc", "all", None])
        _check_option("stacks", stacks, ["python", "all"])
        # PyTorch 2.14 and later pass `rest[5]`. If it is False, PyTorch records only pinned memory.
        if len(rest) < 6 or rest[5]:
            self._simulation.record_history(enabled, context, max_entries)

    def record_legacy(self, enabled: bool, *rest: Any, **_: Any) -> None:
        if len(rest) < 10 or rest[9]:
            self._simulation.record_history("all" if enabled else None, "all", 1 << 40)

    def snapshot(self, pool: tuple[int, ...] | None = None) -> dict[str, Any]:
        whole = self._simulation.snapshot()
        number = (0, 0) if pool is None else tuple(pool[:2])
        if number != (0, 0):
            whole["segments"] = [
                segment for segment in whole["segments"] if segment["segment_pool_id"] == number
            ]
        return whole

    def traceback_of(self, address: int) -> list[dict[str, Any]] | None:
        if not self._simulation.keeps_history:
            return None
        for segment in self._simulation.snapshot()["segments"]:
            for block in segment["blocks"]:
                if block["address"] == address and block["state"] == "active_allocated":
                    frames: list[dict[str, Any]] | None = block.get("frames")
                    return frames
        return None


def _check_option(what: str, given: str | None, known: list[str | None]) -> None:
    if given not in known:
        *most, last = ("None" if name is None else f"'{name}'" for name in known)
        raise RuntimeError(f"expected {what} to be {', '.join(most)}, or {last}")
