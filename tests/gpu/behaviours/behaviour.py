"""Defines behaviours, and compares their observations under two allocators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Observed = dict[str, Any]  # values that JSON can hold
Relation = Callable[[Any, Any], bool]  # takes PyTorch's value and plimsoll's
Program = Callable[[], Observed]


class UnavailableError(Exception):
    """This machine or this PyTorch lacks what the behaviour needs."""


def anything(_theirs: Any, _ours: Any) -> bool:
    """Accepts any two values."""
    return True


def at_most(theirs: Any, ours: Any) -> bool:
    """Accepts numbers that are no larger than PyTorch's."""
    if isinstance(theirs, list):
        return len(theirs) == len(ours) and all(map(at_most, theirs, ours))
    if isinstance(theirs, dict):
        return theirs.keys() == ours.keys() and all(at_most(theirs[k], ours[k]) for k in theirs)
    return bool(ours <= theirs)


def same_type(theirs: Any, ours: Any) -> bool:
    """Accepts errors of the same type; their messages may differ."""
    return bool(theirs[0] == ours[0])


@dataclass(frozen=True)
class Behaviour:
    """A program, and the relations that its observations under two allocators must satisfy.

    Observations without a relation must be equal. The decorator `behaviour` explains the fields.
    """

    name: str
    group: str
    program: Program
    elastic: Mapping[str, Relation]
    either: Mapping[str, Relation]
    own_process: bool

    def differences(self, allocator: str, theirs: Observed, ours: Observed) -> list[str]:
        """Returns the names of observations that break their relation.

        The result includes each name that only one of `theirs` and `ours` has.
        """
        relations = dict(self.either)
        if allocator == "elastic":
            relations |= self.elastic
        names = [*theirs, *(name for name in ours if name not in theirs)]
        return [
            name
            for name in names
            if name not in theirs
            or name not in ours
            or not (
                relations[name](theirs[name], ours[name])
                if name in relations
                else theirs[name] == ours[name]
            )
        ]


BEHAVIOURS: dict[str, Behaviour] = {}


def behaviour(
    *,
    elastic: Mapping[str, Relation] | None = None,
    either: Mapping[str, Relation] | None = None,
    own_process: bool = False,
) -> Callable[[Program], Program]:
    """Returns a decorator that registers a program.

    Args:
        elastic: Names of observations that need not be equal under PyTorch's allocator and
            plimsoll's elastic allocator, each with the relation that must hold instead.
        either: Names of observations that need not be equal under PyTorch's allocator and any of
            plimsoll's allocators, each with the relation that must hold instead. If a name is in
            both mappings, the relation in `elastic` applies to the elastic allocator.
        own_process: Whether the program runs in a process of its own.
    """

    def register(program: Program) -> Program:
        group = program.__module__.rpartition(".")[2]
        name = f"{group}.{program.__name__}"
        BEHAVIOURS[name] = Behaviour(name, group, program, elastic or {}, either or {}, own_process)
        return program

    return register
