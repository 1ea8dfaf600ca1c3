"""A behaviour, and the comparison of its observations under two allocators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Observed = dict[str, Any]  # plain JSON values
Relation = Callable[[Any, Any], bool]  # of PyTorch's value and plimsoll's
Program = Callable[[], Observed]


class UnavailableError(Exception):
    """This machine or this PyTorch lacks a requirement of the behaviour."""


def anything(_theirs: Any, _ours: Any) -> bool:
    """Reported, not compared."""
    return True


def at_most(theirs: Any, ours: Any) -> bool:
    """No number is larger than PyTorch's."""
    if isinstance(theirs, list):
        return len(theirs) == len(ours) and all(map(at_most, theirs, ours))
    if isinstance(theirs, dict):
        return theirs.keys() == ours.keys() and all(at_most(theirs[k], ours[k]) for k in theirs)
    return bool(ours <= theirs)


def same_type(theirs: Any, ours: Any) -> bool:
    """Both are errors of one type; their messages may differ."""
    return bool(theirs[0] == ours[0])


@dataclass(frozen=True)
class Behaviour:
    """A program with the relations of its observations; without a relation they must be equal."""

    name: str
    group: str
    program: Program
    elastic: Mapping[str, Relation]
    either: Mapping[str, Relation]
    own_process: bool

    def differences(self, allocator: str, theirs: Observed, ours: Observed) -> list[str]:
        """Names the observations that break their relation."""
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
    """Register a program.

    `elastic` has the relations of observations that may differ under the elastic allocator,
    `either` of those that may differ under the native one too.
    """

    def register(program: Program) -> Program:
        group = program.__module__.rpartition(".")[2]
        name = f"{group}.{program.__name__}"
        BEHAVIOURS[name] = Behaviour(name, group, program, elastic or {}, either or {}, own_process)
        return program

    return register
