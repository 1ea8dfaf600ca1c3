"""Tests that the peaks of PyTorch's own allocator outlive a program's resets."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

from plimsoll.base.telemetry.peak_resets import TorchPeaks


class _Torch(ModuleType):
    """A PyTorch whose GPU has the given peaks until the program resets them."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.peak = 0
        self.is_readable = True
        self._C = SimpleNamespace(
            _cuda_resetPeakMemoryStats=self._reset, _accelerator_resetPeakStats=self._reset
        )
        self.cuda = SimpleNamespace(memory_stats=self._statistics)

    def _reset(self, _device: int) -> None:
        self.peak = 0

    def _statistics(self, _device: int) -> dict[str, int]:
        if not self.is_readable:
            raise RuntimeError("no statistics")
        return {"allocated_bytes.all.peak": self.peak, "reserved_bytes.all.peak": 2 * self.peak}


def test_peaks_before_a_reset_are_kept() -> None:
    torch = _Torch()
    peaks = TorchPeaks(torch)
    for peak, reset in (
        (5, "_cuda_resetPeakMemoryStats"),
        (9, "_accelerator_resetPeakStats"),
        (7, "_cuda_resetPeakMemoryStats"),
    ):
        torch.peak = peak
        getattr(torch._C, reset)(0)
        assert torch.peak == 0
    assert peaks.of(0) == (9, 18)
    torch.peak = 11
    assert peaks.of(0) == (11, 22)


def test_a_reset_works_even_if_the_peaks_cannot_be_read() -> None:
    torch = _Torch()
    TorchPeaks(torch)
    torch.peak, torch.is_readable = 5, False
    torch._C._cuda_resetPeakMemoryStats(0)
    assert torch.peak == 0
