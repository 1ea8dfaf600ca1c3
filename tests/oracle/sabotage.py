"""Inserts mistakes into `native`, one at a time, and counts the programs needed to find each.

Run it with a PyTorch version: python -m tests.oracle.sabotage 2.15.0
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.oracle.builds import build
from tests.oracle.wheels import unpack

_ROOT = Path(__file__).parents[2]
_PROGRAMS = 1000


@dataclass(frozen=True)
class Mistake:
    """A line of the core, with a wrong replacement."""

    name: str
    file: str
    right: str
    wrong: str


_NATIVE = "core/src/allocator/native/native.cpp"
_SEARCH = "core/src/allocator/native/search.cpp"
_SEGMENTS = "core/src/allocator/native/segments.cpp"
_CONFIG = "core/src/allocator/config.cpp"
MISTAKES = (
    Mistake(
        "1 MiB is a large request",
        "core/include/plimsoll/allocator/native/pools.h",
        "size <= AllocatorConfig::kSmallRequest",
        "size < AllocatorConfig::kSmallRequest",
    ),
    Mistake(
        "10 MiB share a segment",
        _CONFIG,
        "if (rounded < kLargeRequest)",
        "if (rounded <= kLargeRequest)",
    ),
    Mistake(
        "divisions round to the next power of two",
        _CONFIG,
        "std::bit_floor(size) / divisions",
        "std::bit_ceil(size) / divisions",
    ),
    Mistake(
        "a block as large as the rounding allows is taken",
        _SEARCH,
        "block->size >= request.size + config.max_non_split_rounding",
        "block->size > request.size + config.max_non_split_rounding",
    ),
    Mistake(
        "of two expandable blocks the later one is taken",
        _SEARCH,
        "reach(next) < reach(block)",
        "reach(next) <= reach(block)",
    ),
    Mistake(
        "the limit refuses what just fits",
        "core/include/plimsoll/allocator/native/native.h",
        "collected + request.segment > *limit_",
        "collected + request.segment >= *limit_",
    ),
    Mistake(
        "small segments go back before large ones",
        _NATIVE,
        "segments_.release_free(pools_.large);\n    segments_.release_free(pools_.small);",
        "segments_.release_free(pools_.small);\n    segments_.release_free(pools_.large);",
    ),
    Mistake(
        "blocks of average age are no garbage",
        _SEGMENTS,
        "static_cast<double>(age(block)) < average",
        "static_cast<double>(age(block)) <= average",
    ),
    Mistake(
        "the stream of a block counts as another one",
        _NATIVE,
        "if (stream == block->stream) return;",
        "",
    ),
    Mistake(
        "pools for emergencies come before oversize blocks in all versions",
        _NATIVE,
        "version_.uses_oom_pools_first()) block",
        "!version_.uses_oom_pools_first()) block",
    ),
    Mistake(
        "a free block forgets its last owner's size",
        _NATIVE,
        "block = blocks_.split_front(rest, size);",
        "block = blocks_.split_front(rest, size);\n    rest->requested = 0;",
    ),
)


def main(version: str) -> int:
    """Tries all mistakes. Returns the exit status, 1 if a mistake was not found."""
    unpack(version)
    is_found = True
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch)
        for folder in ("core", "tests/oracle", "src/plimsoll/include", "src/plimsoll/torch/wheel"):
            shutil.copytree(_ROOT / folder, copy / folder)
        shutil.copy(_ROOT / "CMakeLists.txt", copy)
        for mistake in MISTAKES:
            file = copy / mistake.file
            right = file.read_text()
            if mistake.right not in right:
                raise SystemExit(f"'{mistake.right}' is no longer in {mistake.file}")
            file.write_text(right.replace(mistake.right, mistake.wrong, 1))
            found = _found_by(build(version, copy, copy / "build"))
            file.write_text(right)
            is_found &= found is not None
            print(f"{found or 'not found':>10}  {mistake.name}", flush=True)
    return 0 if is_found else 1


def _found_by(program: Path) -> str | None:
    """Returns the number of the first program that showed a difference."""
    command = [str(program), "first", "1", str(_PROGRAMS), "200"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    found = re.match(r"seed (\d+)", done.stdout)
    return found[1] if found else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
