"""What a change to a script is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.fitting.script_text import ScriptText


def _as_it_is(script: ScriptText) -> ScriptText:
    return script


@dataclass(frozen=True)
class Change:
    """One change, which can be tried.

    Attributes:
        kind: What it is about; a plan has at most one change of a kind.
        name: What it does, in words: "use the fused AdamW".
        detail: What tells it from others of this name.
        edit: What it makes of the script; raises `CannotChangeError`.
        arguments: Options that the script is called with instead of its own, and their values.
        order: Those of a lower one are made first: what wraps less of the script.
        allocator: The allocator that it needs; None for any.
        conf: PYTORCH_CUDA_ALLOC_CONF that it needs; None for any.
        caveat: How results may differ from what they were; "" where they are the same, within the
            noise of two runs.
        note: What to know about results that stay what they were.
        saves_bytes: No more than this, of the peak; a bound.
        costs_seconds: Of a step, about; below 0 where it is faster. Until it was tried.
        unseen_seconds: Of a step, about, that no simulation counts: what the host computes.
        excludes: Kinds that it cannot be with.
        short: The name where there is little room, as "fused AdamW"; "" where `name` is as short.
    """

    kind: str
    name: str
    detail: str = ""
    edit: Callable[[ScriptText], ScriptText] = field(default=_as_it_is, compare=False)
    arguments: tuple[tuple[str, str], ...] = ()
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
    def keeps_results(self) -> bool:
        """Whether results stay what they were."""
        return not self.caveat

    @property
    def label(self) -> str:
        """What lists and tables call it."""
        return self.short or self.name
