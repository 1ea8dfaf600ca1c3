"""Reads and writes the files of `plimsoll measure`, one for each card and driver.

A file is TOML, short enough that people can read it and mail it to the project. Its tables are:

- `[measured]` has the card, the date and the versions.
- `[card]` has the fields of `GpuProfile`.
- `[rates]` has the timings.
- `[convolutions]` has the workspaces of cuDNN's kernels.
- `[searches]` has the workspaces of cudnn.benchmark.
- `[checks]` has other measured figures, each with plimsoll's prediction.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.base.errors import InputError
from plimsoll.base.files import NewFile
from plimsoll.engine.gpus.card_names import unusable

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER_VARIABLE = "PLIMSOLL_CARDS"
"""The environment variable that names the folder with the cards' files."""
_DRIVER_VERSION = Path("/proc/driver/nvidia/version")
_MOST_BYTES = 16 << 20
"""A card's file that is larger than this is refused."""
_MOST_NUMBER = 1 << 60
_LONGEST_NAME = 100
_SIZES = r"\d{1,12}(?:x\d{1,12}){0,4}"
CONVOLUTION = re.compile(
    r"(?P<type>bfloat16|float16|float32|float64)(?P<channels_last> channels_last)?"
    rf"(?P<transposed> transposed)? (?P<input>{_SIZES}) by (?P<weight>{_SIZES})"
    rf" stride (?P<stride>{_SIZES}) padding (?P<padding>{_SIZES})"
    rf" dilation (?P<dilation>{_SIZES}) groups (?P<groups>\d{{1,12}})"
    rf"(?: output_padding (?P<output_padding>{_SIZES}))?"
)
"""Matches the description of a convolution, as csrc/rules/measured_convolutions.h writes it."""
OF_PYTORCH = (
    *("total_bytes", "multiprocessors", "l2_cache_bytes", "max_threads_per_multiprocessor"),
    *("shared_memory_per_multiprocessor_bytes", "shared_memory_per_block_optin_bytes"),
    "compute_capability",
)
"""The fields of `GpuProfile` whose values PyTorch reports."""
_COUNTS = (*OF_PYTORCH[:-1], "context_bytes")
_SPEEDS = ("memory_bandwidth_bytes_per_s", "bus_bytes_per_s", "fp32_flops", "tensor_flops")
KINDS = ("datacenter", "desktop", "laptop", "workstation")
CONTEXT_PARTS = (
    *("kernels", "streams", "blas", "blas_handle", "stacks", "solver", "solver_handle"),
    "fourier",
)
"""The parts of a process's CUDA context. The driver adds a part when the process first uses it.

- kernels: PyTorch's kernels.
- streams: PyTorch's pool of streams.
- blas: cuBLAS, with one thread's handle.
- blas_handle: a cuBLAS handle. Each further thread that multiplies needs one, such as the thread
  of the backward pass.
- stacks: the growth of the kernels' stacks. Convolutions, recurrent layers and attention need
  larger stacks than other operations.
- solver: cuSOLVER, with one thread's handle.
- solver_handle: cuSOLVER's handle of each further thread.
- fourier: cuFFT.

The enumeration Library of torch/simulated/csrc/device/runtime.h has the same order.
"""
OF_TRAINING = ("made", "kernels", "blas", "blas_handle", "stacks")
"""The parts of a context in most training programs. "made" is the context before any other part."""


Search = tuple[int, int, int, int]
Searches = tuple[Search, Search, Search]


@dataclass(frozen=True)
class CardFile:
    """The measured figures of one card under one driver.

    Attributes:
        name: The name that `torch.cuda.get_device_name` returns, or the user's own.
        driver: The driver's version; "" if unknown.
        date: The date of the measurement, such as 2026-11-27.
        torch: PyTorch's version.
        cudnn: cuDNN's version.
        card: Fields of `GpuProfile`, without names and sources.
        rates: The measured rates (bytes or operations per second) and times (seconds), by name.
        convolutions: The bytes of cuDNN's workspaces, keyed by the description of the convolution.
            Each value has three sizes: for the forward pass, the gradient of the input and the
            gradient of the weight.
        searches: The bytes of cudnn.benchmark's workspaces, by the description of the convolution,
            for the same three passes. cuDNN searched three times for the fastest plan of each pass.
            A pass has four numbers: the most that a search took, and the workspaces of the three
            plans found, the smallest first.
        checks: Pairs of measured and predicted bytes, by the name of what takes the memory.
    """

    name: str
    driver: str
    date: str
    torch: str
    cudnn: str
    card: dict[str, Any]
    rates: dict[str, float] = field(default_factory=dict)
    convolutions: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    searches: dict[str, Searches] = field(default_factory=dict)
    checks: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        """Returns where and when the figures were measured, for `GpuProfile.sources`."""
        driver = f", driver {self.driver}" if self.driver else ""
        return f"plimsoll measure, {self.date}{driver}, PyTorch {self.torch}"

    def to_toml(self) -> str:
        """Returns the content of the card's file."""
        about = {key: value for key, value in asdict(self).items() if isinstance(value, str)}
        parts = {key: value for key, value in self.card.items() if isinstance(value, dict)}
        plain = {key: value for key, value in self.card.items() if key not in parts}
        return "\n".join(
            [
                "# What `plimsoll measure` found on a card; docs/gpus.md says what each figure is.",
                *_section("measured", about),
                *_section("card", plain),
                *(line for key, part in parts.items() for line in _section(f"card.{key}", part)),
                *_section("rates", self.rates),
                *_section("convolutions", self.convolutions),
                *_section("searches", self.searches),
                *_section("checks", self.checks),
                "",
            ]
        )


def _section(name: str, values: Mapping[str, Any]) -> list[str]:
    if not values:
        return []
    lines = [f"{_key(key)} = {_value(value)}" for key, value in values.items()]
    return ["", f"[{name}]", *lines]


def _key(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_]+", text) else _value(text)


def _value(value: object) -> str:
    # Values are numbers, strings without line breaks, or lists of these. For such values, JSON is
    # also valid TOML.
    return json.dumps(value, ensure_ascii=False)


def cards_folder() -> Path:
    """Returns the folder of this user's card files.

    PLIMSOLL_CARDS names the folder. By default it is plimsoll/cards in XDG_DATA_HOME, or else in
    ~/.local/share.
    """
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named)
    base = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")  # noqa: PTH111
    return Path(base) / "plimsoll" / "cards"


def file_of(name: str, driver: str) -> Path:
    """Returns the path of the file for a card's figures."""
    words = re.sub(r"[^A-Za-z0-9.]+", "-", f"{name} {driver}").strip("-.") or "card"
    return cards_folder() / f"{words}.toml"


def write_card(found: CardFile, path: Path) -> None:
    """Writes a card's file atomically.

    Raises:
        InputError: If the file cannot be written.
    """
    with suppress(OSError):  # NewFile reports what is wrong with the folder
        path.parent.mkdir(parents=True, exist_ok=True)
    with NewFile(path, force=True) as file:
        file.write(found.to_toml().encode())


def measured_cards() -> list[CardFile]:
    """Returns the content of one file for each measured card.

    A card can have several files, one for each driver version. Chooses the file for this machine's
    driver, or, if there is none, the file with the latest date.

    Raises:
        InputError: If a file cannot be read, or is not a card file.
    """
    driver, best = driver_version(), dict[str, CardFile]()
    try:
        paths = sorted(cards_folder().glob("*.toml"))
    except OSError as error:
        raise InputError(f"{cards_folder()}: {error.strerror}") from None
    for found in map(read_card, paths):
        known = best.get(found.name)
        if known is None or _rank(found, driver) >= _rank(known, driver):
            best[found.name] = found
    return list(best.values())


def _rank(found: CardFile, driver: str) -> tuple[bool, str]:
    return bool(driver) and found.driver == driver, found.date


def driver_version() -> str:
    """Returns the version of this machine's NVIDIA driver; "" if no version is found."""
    with suppress(OSError):
        text = _DRIVER_VERSION.read_text(encoding="utf-8", errors="replace")
        if found := re.search(r"\b\d{3,4}\.\d+(?:\.\d+)?\b", text):
            return found[0]
    return ""


def read_card(path: Path) -> CardFile:
    """Reads a card's file.

    Raises:
        InputError: If the file cannot be read, or is not a card file.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    try:
        if len(content) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES >> 20} MiB")
        return _parse(tomllib.loads(content.decode()))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is no file of a card: {error}; measure the card again, or remove the file"
        ) from None


def _parse(data: dict[str, Any]) -> CardFile:
    about, card = _table(data, "measured"), _table(data, "card")
    texts = {key: _text(about, key) for key in ("name", "driver", "date", "torch", "cudnn")}
    if why_not := unusable(texts["name"]):
        raise ValueError(f"measured.name {why_not}")
    capability = card.get("compute_capability")
    if not isinstance(capability, str) or not re.fullmatch(r"\d{1,2}\.\d", capability):
        raise ValueError("card.compute_capability is not as 9.0")
    if card.get("kind") not in KINDS:
        raise ValueError(f"card.kind is none of {', '.join(KINDS)}")
    parts = _table(card, "context_parts")
    if parts and parts.keys() != {"made", *CONTEXT_PARTS}:
        raise ValueError("card.context_parts has other parts than this version of plimsoll")
    return CardFile(
        **texts,
        card={
            **{key: _count(card, key) for key in _COUNTS},
            **{key: _number(card, key) for key in _SPEEDS},
            "compute_capability": capability,
            "kind": card["kind"],
            "nvlinks": _count(card, "nvlinks", least=0),
            "nccl_process_bytes": _count(card, "nccl_process_bytes", least=0),
            "context_parts": {key: _count(parts, key, least=0) for key in parts},
        },
        rates={key: _number(data["rates"], key) for key in _table(data, "rates")},
        convolutions={
            _convolution(key): _bytes(value, 3)
            for key, value in _table(data, "convolutions").items()
        },
        searches={
            _convolution(key): _searches(value) for key, value in _table(data, "searches").items()
        },
        checks={key: _bytes(value, 2) for key, value in _table(data, "checks").items()},
    )


def _table(data: dict[str, Any], key: str) -> dict[str, Any]:
    found = data.get(key, {})
    if not isinstance(found, dict):
        raise ValueError(f"{key} is no table")
    return found


def _text(data: dict[str, Any], key: str) -> str:
    found = data.get(key)
    if not isinstance(found, str) or len(found) > _LONGEST_NAME or not found.isprintable():
        raise ValueError(f"measured.{key} is no short text")
    return found


def _number(data: dict[str, Any], key: str) -> float:
    found = data.get(key)
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 < found < 1e30:
        raise ValueError(f"{key} is no positive number")
    return float(found)


def _count(data: dict[str, Any], key: str, least: int = 1) -> int:
    found = data.get(key)
    if isinstance(found, bool) or not isinstance(found, int) or not least <= found < _MOST_NUMBER:
        raise ValueError(f"{key} is no whole number from {least}")
    return found


def _convolution(words: str) -> str:
    if not CONVOLUTION.fullmatch(words):
        raise ValueError(f"{words[:_LONGEST_NAME]!r} is no convolution")
    return words


def _searches(values: Any) -> Any:
    if not isinstance(values, list) or len(values) != 3:
        raise ValueError(f"{values!r:.60} are not the searches of three passes")
    passes = tuple(_bytes(value, 4) for value in values)
    if any(list(fastest) != sorted(fastest) for _, *fastest in passes):
        raise ValueError(f"{values!r:.60}: the fastest plans are not from the least to the most")
    return passes


def _bytes(values: Any, count: int) -> Any:
    if not isinstance(values, list) or len(values) != count:
        raise ValueError(f"{values!r:.60} are not {count} numbers of bytes")
    return tuple(_count({"bytes": value}, "bytes", least=0) for value in values)
