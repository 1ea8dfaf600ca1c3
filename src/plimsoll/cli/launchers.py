"""Programs that start a job or a server: what follows their names is their own."""

from __future__ import annotations

from pathlib import Path

_MODULES = {
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "accelerate.commands.accelerate_cli",
    "deepspeed.launcher.runner",
}
_SCRIPTS = {"torchrun", "accelerate", "deepspeed"}


def own_arguments(words: list[str]) -> list[str]:
    """A command's words, with a -- behind a launcher, and without the one that comes later.

    So `-m torch.distributed.run --nproc-per-node 8 train.py -- --epochs 3` reads as for any script:
    what is behind the -- goes to the script.
    """
    own = words[: words.index("--")] if "--" in words else words
    place = next((i for i, word in enumerate(own) if _is_launcher(own, i, word)), None)
    if place is None:
        return words
    later = words[place + 1 :]
    if "--" in later:
        later.remove("--")
    return [*words[: place + 1], "--", *later]


def _is_launcher(words: list[str], place: int, word: str) -> bool:
    if Path(word).name == "vllm":
        return words[place + 1 : place + 2] == ["serve"]
    return (word in _MODULES and "-m" in words[:place]) or Path(word).name in _SCRIPTS
