"""Tests that prose gets no harder to read; `tests/prose.py` has the rules."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.apart import ROOT
from tests.prose import AREAS, flagged_in, share_of

if TYPE_CHECKING:
    from pathlib import Path

MOST_PERCENT = {"src": 0.07, "core and csrc": 0.1, "docs": 0.26}
"""The highest allowed percentage of flagged lines in each area.

Lower a limit if possible; never raise one.
"""


@pytest.mark.parametrize("area", AREAS)
def test_no_more_lines_have_to_be_read_twice(area: str) -> None:
    share, flagged = share_of(area)
    worst = Counter(str(each.path.relative_to(ROOT)) for each in flagged).most_common(5)
    assert share <= MOST_PERCENT[area], (
        f"{area}: {share:.2f} % of the lines of prose have a sentence to look at, and may have "
        f"{MOST_PERCENT[area]} %. `python -m tests.prose FILE` lists a file's; most have {worst}"
    )


@pytest.mark.parametrize(
    ("sentence", "rule"),
    [
        ("Of a free that waits at the start already.", "begins without a subject"),
        ("The same for a graph.", "begins without a subject"),
        ("As many requests were made as there may be.", "begins without a subject"),
        ("What is said of it.", "a noun clause instead of a sentence"),
        ("Where the layer is.", "a noun clause instead of a sentence"),
        ("It reads values that nobody knows.", "no actor"),
        ("Everything hangs on it.", "an idiom that is not English"),
        ("It is extrapolated: two ranks were measured: those on one machine.", "a chain of colons"),
        ("It waits; it reads; it ends.", "more than one thought"),
        (f"It is {'very ' * 40}long.", "more than 40 words"),
        ("After PyTorch and its extensions.", "no verb"),
    ],
)
def test_a_sentence_to_read_twice_is_found(tmp_path: Path, sentence: str, rule: str) -> None:
    file = tmp_path / "file.py"
    file.write_text(f"x = 0\n# It is true. {sentence}\n# It is short.\n")
    assert [(each.line, each.rule, each.text) for each in flagged_in(file)[0]] == [
        (2, rule, sentence)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "# A run in its own session never gets Ctrl-C. Drop that run's report.\n",
        "# Where file systems can share bytes, no byte is copied.\n",
        'def peak() -> int:\n    """The most bytes in live blocks.\n    """\n',
        "limit = 8  # bytes of each row, in pages\n",
        "x = 0  # noqa: E501\n",
    ],
)
def test_plain_sentences_are_left_alone(tmp_path: Path, text: str) -> None:
    file = tmp_path / "file.py"
    file.write_text(text)
    assert flagged_in(file)[0] == []


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("a.py", '"""One.\n\nTwo.\n"""\nx = 1  # of what\n# a\n# b\n', {1: "One.", 3: "Two."}),
        ("a.cpp", '// One.\nint x = f("//");  // of it\n', {1: "One."}),
        ("a.md", "# Title\n\nOne.\n\n```\nOf code.\n```\n- Two.\n", {3: "One.", 8: "Two."}),
    ],
)
def test_only_prose_is_read(tmp_path: Path, name: str, text: str, lines: dict[int, str]) -> None:
    from tests.prose import paragraphs_of

    file = tmp_path / name
    file.write_text(text)
    found = dict(line for paragraph in paragraphs_of(file) for line in paragraph.sentences())
    assert lines.items() <= found.items()
    assert not any("code" in sentence or '"' in sentence for sentence in found.values())
