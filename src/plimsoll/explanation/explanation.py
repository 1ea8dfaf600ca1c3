"""The result of `explain`, which prints as text and shows itself as HTML in a notebook."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.base.notebook_form import NotebookForm
from plimsoll.explanation.html import explanation_html
from plimsoll.explanation.parts import ExplanationParts
from plimsoll.explanation.text import explanation_text


@dataclass(frozen=True)
class Explanation(NotebookForm, ExplanationParts):
    """The explanation of one device's memory; `ExplanationParts` describes its parts.

    >>> import plimsoll
    >>> found = plimsoll.explain("examples/recordings/gpt2_adamw.pickle.gz", advice=False)
    >>> print(found)  # doctest: +SKIP
    """

    def __str__(self) -> str:
        return explanation_text(self)

    def _repr_html_(self) -> str:
        return explanation_html(self)
