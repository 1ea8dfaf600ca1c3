"""Tests the articles' own snippets on simulated GPUs.

The articles are not part of the project. PLIMSOLL_ARTICLES names the folder of the articles.
`tests/article_cases.py` says what to expect of some snippets. Every other complete snippet must
run.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.article_cases import CASES, TWO, Case
from tests.simulated import simulate
from tests.snippets import Snippet, read_snippets

pytest.importorskip("torch")

NAMED = os.environ.get("PLIMSOLL_ARTICLES")
if not NAMED:
    pytest.skip("set PLIMSOLL_ARTICLES to the folder with the articles", allow_module_level=True)
SNIPPETS = read_snippets(Path(NAMED)) if Path(NAMED).is_dir() else []


def program(snippet: Snippet, case: Case) -> str:
    """Returns a snippet with the lines that its case adds."""
    lines = snippet.code.splitlines()
    for start, code in case.inside.items():
        place = next(number for number, line in enumerate(lines) if line.startswith(start))
        lines[place:place] = code.splitlines()
    header = ["import torch"] if case.before or "torch" in snippet.missing else []
    return "\n".join([*header, case.before, *lines, case.after])


def test_the_folder_has_articles_with_snippets() -> None:
    if not SNIPPETS:
        pytest.fail(f"PLIMSOLL_ARTICLES={NAMED}: no articles with snippets there", pytrace=False)


def test_every_snippet_of_which_something_is_known_is_found() -> None:
    found = {(snippet.article, snippet.number) for snippet in SNIPPETS}
    articles = {article for article, _ in found}
    assert {(article, number) for article, number in CASES if article in articles} <= found


@pytest.mark.long
@pytest.mark.parametrize(
    ("snippet", "case"),
    [
        pytest.param(snippet, case, id=f"{snippet.article}-{snippet.number}")
        for snippet in SNIPPETS
        for case in tuple(CASES.get((snippet.article, snippet.number), ())) or (None,)
    ],
)
def test_a_snippet_does_what_its_article_says(
    snippet: Snippet, case: Case | None, tmp_path: Path
) -> None:
    if case is None and (missing := snippet.missing - {"torch"}):
        pytest.skip(f"the snippet needs {', '.join(sorted(missing))}")
    known = case or Case(options=TWO)
    path = tmp_path / "snippet.py"
    path.write_text(program(snippet, known), encoding="utf-8")
    done = simulate(path, *known.options, gpu=known.gpu, stdin="\n", folder=tmp_path)
    if case is None and "ModuleNotFoundError" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    assert known.prints(done.stdout), done.stdout
