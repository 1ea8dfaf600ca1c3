"""Tests that every public name has an example, and that the examples are right."""

from __future__ import annotations

import doctest
import re

import pytest

import plimsoll
from tests.apart import ROOT

PUBLIC = [name for name in vars(plimsoll)["__all__"] if name != "__version__"]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_an_example_or_a_link(name: str) -> None:
    text = getattr(plimsoll, name).__doc__
    assert text, name
    assert ">>>" in text or "docs/" in text


def test_the_page_of_the_api_has_every_public_name() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^ +heading: plimsoll\.(\w+)$", page, re.M)) == sorted(PUBLIC)


def examples_of(name: str) -> doctest.DocTest | None:
    """Returns a name's examples; None if it has no example that the tests can run."""
    found = doctest.DocTestParser().get_doctest(
        getattr(plimsoll, name).__doc__, {"plimsoll": plimsoll}, name, None, None
    )
    is_run = [not each.options.get(doctest.SKIP, False) for each in found.examples]
    return found if any(is_run) else None


@pytest.mark.parametrize("name", [name for name in PUBLIC if examples_of(name) is not None])
def test_examples_are_right(name: str) -> None:
    found = examples_of(name)
    assert found is not None
    failed: list[str] = []
    doctest.DocTestRunner(verbose=False).run(found, out=failed.append)
    assert not failed, "".join(failed)
