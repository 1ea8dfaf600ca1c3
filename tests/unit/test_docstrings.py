"""Every public name shows how it is used, and the examples are right."""

from __future__ import annotations

import doctest

import pytest

import plimsoll

PUBLIC = [name for name in vars(plimsoll)["__all__"] if name != "__version__"]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_an_example_or_a_link(name: str) -> None:
    text = getattr(plimsoll, name).__doc__
    assert text, name
    assert ">>>" in text or "docs/" in text


@pytest.mark.parametrize("name", PUBLIC)
def test_examples_are_right(name: str) -> None:
    value = getattr(plimsoll, name)
    found = doctest.DocTestFinder(recurse=False).find(value, name, globs={"plimsoll": plimsoll})
    failed: list[str] = []
    for each in found:
        doctest.DocTestRunner(verbose=False).run(each, out=failed.append)
    assert not failed, "".join(failed)
