"""Profiles of GPUs: those of `profiles.toml`, and those measured on this machine."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from plimsoll.base.errors import InputError
from plimsoll.base.units import format_size, parse_memory
from plimsoll.engine.gpus.card_files import OF_TRAINING, CardFile, Searches, measured_cards
from plimsoll.engine.gpus.card_names import name_key, name_keys

if TYPE_CHECKING:
    from collections.abc import Collection

Kind = Literal["datacenter", "desktop", "laptop", "workstation"]

_MOST_SUGGESTIONS = 3
_LEAST_PART = 2
_SIZE_ALONE = re.compile(r"\d+(?:g|gb|gib)")
_LEAST_SIMILARITY = 0.6
_LEAST_OF_SIZE = 0.9
"""PyTorch reports at least this share of the memory size that a card is sold with."""
_PIECE_BYTES = 2 << 20
_MOST_OF_ESTIMATE = 1.55
"""A context may be this many times its estimate.

The rule of the estimates gives 496 MiB for an H100, whose context takes 766.8 MiB in training.
"""


@dataclass(frozen=True, slots=True)
class GpuProfile:
    """One model of GPU, as a PyTorch process on Linux sees it.

    Attributes:
        name: A short name, such as "H100".
        full_name: The name that `torch.cuda.get_device_name` returns.
        total_bytes: The memory that `torch.cuda.get_device_properties(0).total_memory` returns.
        multiprocessors: The number of streaming multiprocessors.
        compute_capability: The major and the minor number.
        l2_cache_bytes: The size of the level 2 cache.
        max_threads_per_multiprocessor: The most threads resident at once.
        shared_memory_per_multiprocessor_bytes: The most on-chip shared memory for all blocks of a
            multiprocessor together.
        shared_memory_per_block_optin_bytes: The most on-chip shared memory for one block that asks
            for more than 48 KiB.
        memory_bandwidth_bytes_per_s: The peak bandwidth.
        bus_bytes_per_s: The rate of copies between page-locked host memory and the card, each way.
        fp32_flops: Operations per second outside the tensor cores.
        tensor_flops: Dense fp16 or bf16 operations per second on the tensor cores; `fp32_flops` if
            the card has none.
        context_bytes: The memory of a PyTorch process's CUDA context in a training step, with the
            libraries that most steps load.
        kind: "datacenter", "workstation", "desktop" or "laptop".
        nvlinks: The number of NVLink links from this card to the other cards of a usual machine; 0
            for cards with PCIe only.
        context_parts: Bytes of a new context ("made"), and bytes that each of CONTEXT_PARTS adds
            when a process loads it. Empty if the context's size is constant.
        nccl_process_bytes: The card memory that NCCL takes once in each process, apart from its
            communicators; 0 if that was not measured.
        convolutions, searches: The workspaces of cuDNN's kernels measured on this card, as in
            `CardFile`.
        measured: The origin of the figures if `plimsoll measure` measured the card; else "".
        sources: The source of each number, by the name of its field.
    """

    name: str
    full_name: str
    total_bytes: int
    multiprocessors: int
    compute_capability: tuple[int, int]
    l2_cache_bytes: int
    max_threads_per_multiprocessor: int
    shared_memory_per_multiprocessor_bytes: int
    shared_memory_per_block_optin_bytes: int
    memory_bandwidth_bytes_per_s: float
    bus_bytes_per_s: float
    fp32_flops: float
    tensor_flops: float
    context_bytes: int
    kind: Kind
    sources: dict[str, str] = field(hash=False)
    nvlinks: int = 0
    context_parts: dict[str, int] = field(hash=False, default_factory=dict)
    nccl_process_bytes: int = 0
    convolutions: dict[str, tuple[int, int, int]] = field(
        hash=False, default_factory=dict, repr=False
    )
    searches: dict[str, Searches] = field(hash=False, default_factory=dict, repr=False)
    measured: str = ""

    @property
    def context_measured(self) -> bool:
        """Whether a context's memory was measured on a card of this model."""
        return bool(self.measured) or self.sources["context_bytes"].startswith("measured")

    def context_with(self, loaded: Collection[str]) -> int:
        """Returns the bytes of a context that has loaded these parts of CONTEXT_PARTS.

        A part that is given several times, such as a handle for each thread, counts each time.
        """
        if not self.context_parts:
            return self.context_bytes
        return self.context_parts["made"] + sum(self.context_parts[part] for part in loaded)

    def most_context_bytes(self, context_bytes: int) -> int | None:
        """Returns the most bytes that a context may take; None if its size was measured.

        Args:
            context_bytes: The size of the context, as `context_with` returns it.
        """
        return None if self.context_measured else round(_MOST_OF_ESTIMATE * context_bytes)


def gpu_profile(name: str) -> GpuProfile:
    """Finds a GPU by its name, in any spelling.

    Case, spaces, dashes and the words NVIDIA and GeForce do not matter, and RTX may be left out. A
    size after a colon gives the same chip that much memory: "RTX 4090:20GiB".

    >>> gpu_profile("nvidia geforce rtx4090").name
    'RTX 4090'
    >>> gpu_profile("A100:20GiB").total_bytes
    21474836480

    Raises:
        InputError: If no GPU has this name, or the size is invalid or too small for the CUDA
            context.
    """
    chip, colon, size = name.partition(":")
    profile = _names().get(name_key(chip))
    if profile is None:
        raise InputError(f"unknown GPU {chip.strip()!r}; {_hint(name_key(chip))}")
    if not colon:
        return profile
    total_bytes = parse_memory(size)
    if total_bytes <= profile.context_bytes:
        raise InputError(
            f"{name!r} has no room for the CUDA context of {format_size(profile.context_bytes)}"
        )
    return replace(
        profile,
        name=f"{profile.name}:{size.strip()}",
        total_bytes=total_bytes,
        sources={**profile.sources, "total_bytes": "asked for"},
    )


def gpu_profiles(containing: str = "") -> list[GpuProfile]:
    """Returns all GPUs that have a profile; given a text, those whose name contains the text.

    As for `gpu_profile`, case, spaces, dashes and the words NVIDIA and GeForce do not matter.

    >>> [profile.name for profile in gpu_profiles("4090")]
    ['RTX 4090', 'RTX 4090 Laptop']

    Raises:
        InputError: If no name contains the text.
    """
    key = name_key(containing)
    found = [
        profile
        for profile, aliases in _profiles()
        if any(key in name_key(name) for name in (profile.name, profile.full_name, *aliases))
    ]
    if not found:
        raise InputError(f"no GPU's name contains {containing.strip()!r}; {_hint(key)}")
    return found


@cache
def _profiles() -> tuple[tuple[GpuProfile, tuple[str, ...]], ...]:
    """Returns each profile with its aliases.

    If `plimsoll measure` measured a card, its figures replace the built-in profile of that card.
    """
    found = {name_keys(profile.full_name): (profile, names) for profile, names in _built_in()}
    for card in measured_cards():
        key = name_keys(card.name)
        known = found.get(key)
        if known is None:
            found[key] = _measured(card, card.name, card.name), ()
        else:
            found[key] = _measured(card, known[0].name, known[0].full_name), known[1]
    return tuple(found.values())


def built_in_profile(name: str) -> GpuProfile | None:
    """Returns plimsoll's own profile of the card that PyTorch reports by this name."""
    keys = name_keys(name)
    own = (profile for profile, _ in _built_in() if name_keys(profile.full_name) == keys)
    return next(own, None)


def _measured(card: CardFile, name: str, full_name: str) -> GpuProfile:
    major, minor = card.card["compute_capability"].split(".")
    own = {**card.card, "compute_capability": (int(major), int(minor))}
    return GpuProfile(
        name=name,
        full_name=full_name,
        sources=dict.fromkeys(own, card.origin),
        convolutions=card.convolutions,
        searches=card.searches,
        measured=card.origin,
        **own,
    )


@cache
def _built_in() -> tuple[tuple[GpuProfile, tuple[str, ...]], ...]:
    text = Path(__file__).with_name("profiles.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    measured = next(gpu for gpu in data["gpu"] if "context_parts" in gpu)
    return tuple(
        (_read(gpu, data["compute_capability"], data["sources"], measured), tuple(gpu["aliases"]))
        for gpu in data["gpu"]
    )


def _read(
    gpu: dict[str, Any],
    limits: dict[str, dict[str, Any]],
    sources: dict[str, str],
    measured: dict[str, Any],
) -> GpuProfile:
    version = gpu["compute_capability"]
    major, minor = version.split(".")
    own: dict[str, Any] = {"context_parts": _parts_like(measured, gpu["context_bytes"])}
    own |= {key: value for key, value in gpu.items() if key != "aliases"}
    own |= {"compute_capability": (int(major), int(minor)), "sources": sources | gpu["sources"]}
    return GpuProfile(**(limits[version] | own))


def _parts_like(measured: dict[str, Any], context_bytes: int) -> dict[str, int]:
    """Estimates a card's `context_parts` from those of a measured card.

    Scales each part with the size of the context, and rounds the part to 2 MiB, the driver's unit.
    Then sets "made" so that the parts in `OF_TRAINING` add up to `context_bytes`.
    """
    share = context_bytes / measured["context_bytes"]
    parts = {
        name: round(size * share / _PIECE_BYTES) * _PIECE_BYTES
        for name, size in measured["context_parts"].items()
    }
    return parts | {"made": context_bytes - sum(parts[name] for name in OF_TRAINING[1:])}


@cache
def _names() -> dict[str, GpuProfile]:
    """Maps each key of each name to the profile with that name.

    If a measured profile and a built-in profile share a key, the key leads to the measured profile.
    """
    names: dict[str, GpuProfile] = {}
    for profile, aliases in sorted(_profiles(), key=lambda each: not each[0].measured):
        for name in (profile.name, profile.full_name, *aliases):
            for key in name_keys(name):
                names.setdefault(key, profile)
    return names


def _cards_of_size(size: int) -> str:
    """Returns a hint for a name that is only a size: the cards sold with that many GB."""
    sold = [
        profile
        for profile, _ in _profiles()
        if _LEAST_OF_SIZE * size <= profile.total_bytes / 2**30 <= size
    ]
    names = [each.name for each in sorted(sold, key=lambda each: -each.tensor_flops)]
    several = f"cards of that size are {', '.join(names[:_MOST_SUGGESTIONS])}" if names else ""
    return f"{several or 'no known card has that size'}; `plimsoll gpus` lists all"


def _hint(key: str) -> str:
    """Returns a hint for an unknown name: similar names, and the command that lists all GPUs."""
    near: dict[str, float] = {}
    if len(key) >= _LEAST_PART:
        near = {profile.name: 1.0 for other, profile in _names().items() if key in other}
    for other, profile in {} if near else _names().items():
        is_transposed = sorted(key) == sorted(other)  # such as 4900 for 4090
        similarity = 1.0 if is_transposed else SequenceMatcher(None, key, other).ratio()
        if similarity >= _LEAST_SIMILARITY:
            near[profile.name] = max(similarity, near.get(profile.name, 0.0))
    if _SIZE_ALONE.fullmatch(key):
        return _cards_of_size(int(re.sub("[^0-9]", "", key)))
    if not near:
        return "no known name is near; `plimsoll gpus` lists all"

    def order(name: str) -> tuple[float, bool, int, str]:
        return -near[name], not name_key(name).startswith(key[:1]), len(name), name

    return (
        "did you mean "
        + ", ".join(sorted(near, key=order)[:_MOST_SUGGESTIONS])
        + "? `plimsoll gpus` lists all"
    )
