"""Finds a launcher (such as torchrun) or a server (such as `vllm serve`) on a command line.

All words after the name of the launcher or server are arguments of that launcher or server.
"""

from __future__ import annotations

import re
from pathlib import Path

from plimsoll.prediction.recipes.served import ENGINES

_SERVERS = {engine.module for engine in ENGINES}
_MODULES = {
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "accelerate.commands.accelerate_cli",
    "deepspeed.launcher.runner",
    *_SERVERS,
}
_SCRIPTS = {"torchrun", "accelerate", "deepspeed"}


def own_arguments(words: list[str]) -> list[str]:
    """Inserts `--` after the launcher's name in a command, and removes the next `--`.

    plimsoll passes all words after `--` to the launcher. For example,
    `-m torch.distributed.run --nproc-per-node 8 train.py -- --epochs 3` becomes
    `-m torch.distributed.run -- --nproc-per-node 8 train.py --epochs 3`. Also removes `python`
    before a server's `-m`. Returns the words unchanged if no launcher's name comes before the
    first `--`.
    """
    own = words[: words.index("--")] if "--" in words else words
    place = next((i for i, word in enumerate(own) if _is_launcher(own, i, word)), None)
    if place is None:
        return words
    before = words[: place + 1]
    if words[place] in _SERVERS and re.fullmatch(r"python[\d.]*", Path(before[-3:][0]).name):
        del before[-3]
    later = words[place + 1 :]
    if "--" in later:
        later.remove("--")
    return [*before, "--", *later]


def _is_launcher(words: list[str], place: int, word: str) -> bool:
    if any(Path(word).name == engine.command for engine in ENGINES):
        return words[place + 1 : place + 2] == ["serve"]
    return (word in _MODULES and "-m" in words[:place]) or Path(word).name in _SCRIPTS
