"""Writes a Markdown comment on how a change affects the predicted peaks of scripts."""

from __future__ import annotations

import shlex
from collections import Counter
from contextlib import chdir
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError, ScriptError
from plimsoll.base.printable import printable
from plimsoll.base.units import format_size
from plimsoll.prediction.predict import predict
from plimsoll.recordings.analysis.lines import renamed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from plimsoll.prediction.fitting.headroom import Headroom
    from plimsoll.prediction.results import Prediction

_MOST_ROWS = 10
_MARKS = frozenset("\\`*_{}[]<>()#+!|~@&")


@dataclass(frozen=True)
class PeakChange:
    """The predictions of a script before and after a change of the program.

    Attributes:
        command: The script and its arguments.
        before: The prediction before the change, or a line that says why there is none, such as the
            script's own error.
        after: The prediction after the change, or a line that says why there is none.
    """

    command: str
    before: Prediction | str
    after: Prediction | str

    @property
    def grown_bytes(self) -> int | None:
        """Returns how much the script's memory on the card grew; None without both predictions."""
        if isinstance(self.before, str) or isinstance(self.after, str):
            return None
        return _on_card(self.after) - _on_card(self.before)

    @property
    def fails_now(self) -> bool:
        """Whether the script fails after the change but did not before it."""
        return isinstance(self.after, str) and not isinstance(self.before, str)

    def is_worse(self, allowed: Headroom | None) -> bool:
        """Returns whether the script no longer fits, or has grown by more than is allowed.

        A script also counts as worse if it fitted before and now may or may not fit.
        """
        if isinstance(self.before, str) or isinstance(self.after, str):
            return False
        may_grow = None if allowed is None else allowed.of(_on_card(self.before))
        grown = _on_card(self.after) - _on_card(self.before)
        order = (False, None, True)
        fits_less = order.index(self.after.fits) < order.index(self.before.fits)
        return fits_less or (may_grow is not None and grown > may_grow)


def find_change(command: str, before: Path, after: Path, *, gpu: str) -> PeakChange:
    """Predicts a script in two folders.

    Args:
        command: The script's path, which is the same in both folders, and its arguments.
        before: The folder with the program before the change.
        after: The folder with the program after the change.
        gpu: The card.

    Raises:
        InputError: If the command is empty or malformed, or the script cannot be predicted after
            the change.
    """
    try:
        script, *arguments = shlex.split(command)
    except ValueError as error:  # the command is empty, or a quotation mark is not closed
        raise InputError(f"{command!r} is no script with its arguments: {error}") from None
    with chdir(before):
        was = _predicted(script, arguments, gpu, new_is_known=True)
    with chdir(after):
        return PeakChange(command, was, _predicted(script, arguments, gpu, new_is_known=False))


def _predicted(
    script: str, arguments: Sequence[str], gpu: str, *, new_is_known: bool
) -> Prediction | str:
    try:
        return predict(script, arguments, gpu=gpu)
    except ScriptError as error:
        return str(error)
    except InputError as error:
        if not new_is_known:
            raise
        return str(error)


def markdown(changes: Sequence[PeakChange], gpu: str) -> str:
    """Returns the comment: the answer, a row for each script, and what changed in each."""
    return "\n".join(
        [
            f"### {_answer(changes)}",
            "",
            f"Predicted on {gpu}; what `nvidia-smi` would show at the peak.",
            "",
            "| script | before | after | change | |",
            "|---|--:|--:|--:|---|",
            *(f"| {' | '.join(_row(change))} |" for change in changes),
            *(line for change in changes for line in _details(change)),
            "",
        ]
    )


def _answer(changes: Sequence[PeakChange]) -> str:
    failed = [one for one in changes if isinstance(one.after, str)]
    if failed:
        return f"GPU memory: {_code(failed[0].command)} fails"
    known = [(one.grown_bytes, one) for one in changes if one.grown_bytes is not None]
    grown, largest = max(known, key=lambda each: abs(each[0]), default=(0, changes[0]))
    if grown == 0:
        return "GPU memory: nothing changes"
    return f"GPU memory: {_signed(grown)} at the peak of {_code(largest.command)}"


def _row(change: PeakChange) -> Iterator[str]:
    yield _code(change.command)
    yield _size(change.before)
    yield _size(change.after)
    grown = change.grown_bytes
    if grown is None or isinstance(change.before, str) or not _on_card(change.before):
        yield "?" if grown is None else _signed(grown)
    else:
        yield f"{_signed(grown)} ({100 * grown / _on_card(change.before):+.1f}%)"
    yield _remark(change)


def _remark(change: PeakChange) -> str:
    if isinstance(change.after, str):
        return _text(change.after)
    if not change.after.uses_cuda:
        return "uses no GPU"
    spare = format_size(abs(change.after.headroom_bytes))
    fits = f"fits, {spare} to spare" if change.after.fits else f"does not fit, {spare} too little"
    if change.after.fits is None:
        fits = f"not known whether it fits: {_text(change.after.why_unknown or '')}"
    return f"{fits}; before: {_text(change.before)}" if isinstance(change.before, str) else fits


def _details(change: PeakChange) -> Iterator[str]:
    """Yields a table of categories and functions whose bytes at the peak have changed."""
    if isinstance(change.before, str) or isinstance(change.after, str):
        return
    parts = [
        ("for", Counter(change.before.by_category), Counter(change.after.by_category)),
        ("function", _by_function(change.before), _by_function(change.after)),
    ]
    rows = [
        f"| {_text(name)} | {format_size(was[name])} | {format_size(now[name])} | "
        f"{_signed(now[name] - was[name])} |"
        for _, was, now in parts
        for name in sorted(was | now, key=lambda name: -abs(now[name] - was[name]))[:_MOST_ROWS]
        if now[name] != was[name]
    ]
    if rows:
        yield from (
            "",
            f"<details><summary>What changes at the peak of {_text(change.command)}</summary>",
            "",
            "| allocated | before | after | change |",
            "|---|--:|--:|--:|",
            *rows,
            "",
            "</details>",
        )


def _by_function(prediction: Prediction) -> Counter[str]:
    """Adds up the bytes of `prediction.top_lines` for each function.

    The result's keys name the file and the function, such as "train.py forward". They contain no
    line numbers, because almost any edit of a file changes line numbers.
    """
    held: Counter[str] = Counter()
    for share in prediction.top_lines:
        held[renamed(share.line, _without_number)] += share.bytes
    return held


def _without_number(place: str) -> str:
    file, _, rest = place.rpartition(":")
    return f"{file} {rest.partition(' ')[2]}".strip() or place


def _on_card(prediction: Prediction) -> int:
    return prediction.device_used_bytes if prediction.uses_cuda else 0


def _size(prediction: Prediction | str) -> str:
    return "?" if isinstance(prediction, str) else format_size(_on_card(prediction))


def _signed(size: int) -> str:
    return f"{'-' if size < 0 else '+'}{format_size(abs(size))}" if size else "±0"


def _code(text: str) -> str:
    return f"`{printable(text).replace('`', '').replace('|', '&#124;')}`"


def _text(text: str) -> str:
    """Escapes untrusted text, such as a script's error, for Markdown and HTML."""
    return "".join(f"&#{ord(c)};" if c in _MARKS else c for c in printable(text))
