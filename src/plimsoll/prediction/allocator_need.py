"""The memory of a card that a script needs with one allocator, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AllocatorNeed:
    """The memory of the card that the script needs with one allocator, from replays of its run.

    Attributes:
        allocator: "native" (PyTorch's), "elastic" (plimsoll's) or "uncached" (without a cache).
        conf: The allocator's settings, in the syntax of PYTORCH_CUDA_ALLOC_CONF.
        fits: Whether the card has enough memory for the script with this allocator.
        card_bytes: The memory that nvidia-smi would show at the peak, if the script fits. Otherwise
            the least memory of a card on which the script gets all that it requests; the allocator
            releases its cached memory there before a request fails.
    """

    allocator: str
    conf: str
    fits: bool
    card_bytes: int

    @property
    def way(self) -> str:
        """The setting or the command that selects this allocator; "" for PyTorch's defaults."""
        if self.allocator == "elastic":
            return "`plimsoll run`"
        return self.setting

    @property
    def setting(self) -> str:
        """The environment variable with the settings of PyTorch's allocator; "" if none is set."""
        return f"PYTORCH_CUDA_ALLOC_CONF={self.conf}" if self.conf else ""


def fitting(needs: list[AllocatorNeed]) -> list[AllocatorNeed]:
    """Returns the needs of the allocators with which the script fits.

    Returns nothing if it fits with its own allocator, the first of `needs`.
    """
    if not needs or needs[0].fits:
        return []
    return [need for need in needs[1:] if need.fits]
