"""A change to a script."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.prediction.fitting.script_text import ScriptText

SWITCH = ""
"""In `Change.arguments`, the value of an option that takes no value."""


def _as_it_is(script: ScriptText) -> ScriptText:
    return script


@dataclass(frozen=True)
class Change:
    """One change that can be tried.

    Attributes:
        kind: The kind of change. A plan has at most one change of a kind.
        name: The change in words: "use the fused AdamW".
        detail: The text that distinguishes it from other changes of the same name.
        edit: Returns the changed script, or raises `CannotChangeError`.
        arguments: The script's options that the change sets, with their values. An option without a
            value has `SWITCH`.
        files: Other files that the change rewrites: their new texts by path.
        steps: The number of steps that do the work of one step of the unchanged script.
        order: The position among several changes, which are made in ascending order. A change that
            wraps less of the script has a lower number.
        allocator: The allocator that it needs; None for any.
        conf: The PYTORCH_CUDA_ALLOC_CONF that it needs; None for any.
        caveat: How results may differ; "" if they are the same, within the noise of two runs.
        note: A remark that reports show if there is no `caveat`.
        saves_bytes: The most by which it can lower the peak.
        costs_seconds: The estimated time that it adds to a step, used until a trial measures it;
            negative for a faster step.
        unseen_seconds: An estimate of the time that the host computes in a step, which the
            simulation does not count.
        excludes: The kinds that it cannot be combined with.
        short: A short name for narrow columns, such as "fused AdamW"; "" if `name` is short enough.
    """

    kind: str
    name: str
    detail: str = ""
    edit: Callable[[ScriptText], ScriptText] = field(default=_as_it_is, compare=False)
    arguments: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    steps: int = 1
    order: int = 0
    allocator: str | None = None
    conf: str | None = None
    caveat: str = ""
    note: str = ""
    saves_bytes: int = field(default=0, compare=False)
    costs_seconds: float = field(default=0.0, compare=False)
    unseen_seconds: float = field(default=0.0, compare=False)
    excludes: frozenset[str] = frozenset()
    short: str = field(default="", compare=False)

    @property
    def is_of_options(self) -> bool:
        """Whether it only sets options of the script."""
        needs_more = self.edit is not _as_it_is or self.files or self.allocator or self.conf
        return bool(self.arguments) and not needs_more

    @property
    def keeps_results(self) -> bool:
        """Whether results stay the same."""
        return not self.caveat

    @property
    def label(self) -> str:
        """The change's name in lists and tables."""
        return self.short or self.name
