"""Reads the plan of a sweep from TOML or a Python mapping, and lists the plan's cases."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from plimsoll.base.errors import InputError
from plimsoll.engine.protocol import SimulatedAllocatorName
from plimsoll.prediction.recipes.served import engine_of_script
from plimsoll.prediction.sweeps.parts import GOALS, Case

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike

DEFAULT_GPU = "H100"
MOST_CASES = 100_000
_LISTS = ("scripts", "recordings", "arguments", "gpus", "confs", "allocators")
_NUMBERS = ("nproc_per_node", "nnodes")
_KEYS = (*_LISTS, "vary", *_NUMBERS, "goal", "prices")
_MOST_RANKS = 64


@dataclass(frozen=True)
class SweepPlan:
    """The lists of values that a sweep combines.

    Each case has a script or a recording, and one value from each of the other lists. The sweep
    runs all combinations. If a list is empty, each case has the default of `predict` or `replay`.

    Attributes:
        scripts: Python files; each is predicted.
        recordings: Files of recordings; each is replayed.
        arguments: Sets of arguments for the scripts, each in a shell's syntax.
        vary: Values of the scripts' arguments, by the argument's name.
        gpus: Cards.
        confs: Settings in the syntax of PYTORCH_CUDA_ALLOC_CONF, for PyTorch's own allocator only.
        allocators: Allocators, as `predict` takes them.
        nproc_per_node: The number of processes on each machine, if the scripts run as jobs.
        nnodes: The number of machines of such a job; None is the same as 1.
        goal: The goal, one of `GOALS`. A plan with several cards and no goal asks for the smallest
            card.
        prices: A file with prices of cards by the hour, or None.
    """

    scripts: tuple[str, ...] = ()
    recordings: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    vary: tuple[tuple[str, tuple[str, ...]], ...] = ()
    gpus: tuple[str, ...] = ()
    confs: tuple[str, ...] = ()
    allocators: tuple[str, ...] = ()
    nproc_per_node: int | None = None
    nnodes: int | None = None
    goal: str = "least-memory"
    prices: str | None = None

    @classmethod
    def read(cls, path: str | PathLike[str]) -> SweepPlan:
        """Reads a plan from a TOML file. Paths in it are relative to the file's folder.

        Raises:
            InputError: If the file does not exist, or does not contain a plan.
        """
        path = Path(path)
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:  # the file is not TOML or not UTF-8
            raise InputError(f"{path}: is no TOML: {error}") from None
        try:
            return cls.parse(values, path.parent)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    @classmethod
    def parse(cls, values: Mapping[str, Any], folder: Path | None = None) -> SweepPlan:
        """Returns a plan from plain data, such as the contents of a TOML file.

        Args:
            values: Lists under the names of this class's attributes; `vary` is a table of lists.
            folder: The folder that paths are relative to; by default the current folder.

        Raises:
            InputError: If a key is unknown, or its value is not allowed.
        """
        for key in values:
            if key not in _KEYS:
                raise InputError(f"{key!r} is no key of a plan; there are {', '.join(_KEYS)}")
        lists: dict[str, Any] = {key: _texts(key, values[key]) for key in _LISTS if key in values}
        for key in ("scripts", "recordings"):
            lists[key] = tuple(str((folder or Path()) / one) for one in lists.get(key, ()))
        job: dict[str, Any] = {key: _number(key, values[key]) for key in _NUMBERS if key in values}
        prices = _text("prices", values["prices"]) if "prices" in values else None
        default = "fits" if len(lists.get("gpus", ())) > 1 else cls.goal
        plan = cls(
            **lists,
            vary=_varied(values.get("vary", {})),
            **job,
            goal=_text("goal", values["goal"]) if "goal" in values else default,
            prices=None if prices is None else str((folder or Path()) / prices),
        )
        return plan.checked()

    def cases(self) -> list[Case]:
        """Returns all cases, each once, in the order of the lists."""
        found = [
            Case(
                "prediction",
                script,
                tuple(arguments),
                gpu,
                conf,
                allocator,
                self.nproc_per_node,
                self.nnodes,
            )
            for script, arguments, gpu, (allocator, conf) in product(
                self.scripts, self._argument_sets(), self.gpus or (DEFAULT_GPU,), self._policies("")
            )
        ]
        found += [
            Case("replay", recording, (), gpu, conf, allocator)
            for recording, gpu, (allocator, conf) in product(
                self.recordings, self.gpus or (None,), self._policies(None)
            )
        ]
        return list(dict.fromkeys(found))

    def _argument_sets(self) -> Iterator[list[str]]:
        for words, values in product(
            self.arguments or ("",), list(product(*(values for _, values in self.vary)))
        ):
            arguments = shlex.split(words)
            for (name, _), value in zip(self.vary, values, strict=True):
                arguments += [name, value]
            yield arguments

    def _policies(self, default: str | None) -> list[tuple[str, str | None]]:
        """Returns pairs of allocator and settings. `confs` apply to PyTorch's allocator only."""
        confs = self.confs or (default,)
        return [
            (allocator, conf)
            for allocator in self.allocators or ("native",)
            for conf in (confs if allocator in ("native", "wheel") else (default,))
        ]

    @property
    def ranks(self) -> int:
        """The number of ranks of each job; 1 without jobs."""
        return (self.nproc_per_node or 1) * (self.nnodes or 1)

    def _check_job(self) -> None:
        if self.nproc_per_node is None:
            if self.nnodes is not None:
                raise InputError("'nnodes' goes with 'nproc_per_node'")
            return
        if self.recordings:
            raise InputError("'nproc_per_node' is for scripts: recordings are replayed")
        for engine in filter(None, map(engine_of_script, self.scripts)):
            raise InputError(
                f"'nproc_per_node' is for scripts: {engine.command} serve starts its own processes"
            )
        if self.ranks > _MOST_RANKS:
            raise InputError(
                f"a sweep runs jobs of at most {_MOST_RANKS} ranks, not {self.ranks}; plimsoll "
                "predict --ranks distinct takes larger ones"
            )

    def checked(self) -> SweepPlan:
        """Checks the plan, and returns it.

        Raises:
            InputError: If a value is not allowed, or the plan has too many cases.
        """
        if not self.scripts and not self.recordings:
            raise InputError("'scripts' or 'recordings' must name what is swept over")
        self._check_job()
        if self.goal not in GOALS:
            raise InputError(f"'goal' is one of {', '.join(GOALS)}, not {self.goal!r}")
        for allocator in self.allocators:
            if allocator not in get_args(SimulatedAllocatorName):
                known = ", ".join(get_args(SimulatedAllocatorName))
                raise InputError(f"'allocators' are {known}, not {allocator!r}")
            if allocator == "wheel" and self.recordings:
                raise InputError("the allocator wheel is for scripts: recordings are replayed")
        for words in self.arguments:
            try:
                shlex.split(words)
            except ValueError as error:
                raise InputError(f"'arguments' {words!r}: {error}") from None
        count = len(self.scripts) * max(len(self.arguments), 1)
        for _, values in self.vary:
            count *= len(values)
        count += len(self.recordings)
        count *= max(len(self.gpus), 1) * max(len(self.confs), 1) * max(len(self.allocators), 1)
        if count > MOST_CASES:
            raise InputError(f"the plan has {count:,} cases; {MOST_CASES:,} are allowed")
        return self


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise InputError(f"{key!r} must be a string, not {value!r:.80}")
    if "\0" in value:
        raise InputError(f"{key!r} has a zero byte")
    return value


def _number(key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{key!r} must be a whole number from 1 on, not {value!r:.80}")
    return value


def _texts(key: str, value: object) -> tuple[str, ...]:
    """Returns the strings of a list, each once. A single string counts as a list of one."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not texts:
        raise InputError(f"{key!r} must be a list of strings that is not empty, not {value!r:.80}")
    return tuple(dict.fromkeys(_text(key, text) for text in texts))


def _varied(value: object) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if not isinstance(value, Mapping):
        raise InputError(f"'vary' is a table of lists by argument, not {value!r:.80}")
    varied = []
    for name, values in value.items():
        if not isinstance(name, str) or not name.startswith("-"):
            raise InputError(f"'vary' has arguments, such as --batch-size, not {name!r}")
        numbers = values if isinstance(values, list | tuple) else [values]
        if not all(isinstance(one, str | int | float) for one in numbers):
            raise InputError(f"'vary' {name} is a list of numbers and texts, not {values!r:.80}")
        varied.append((name, _texts(f"vary {name}", [str(one) for one in numbers])))
    return tuple(varied)
