"""Tests that C++ and Python read the facts about PyTorch's versions from the same list."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from plimsoll import _core
from plimsoll.torch.building import versions

ROOT = Path(__file__).parents[2]
KNOWN = f"{versions.text(versions.OLDEST)} {{to}} {versions.text(versions.NEWEST)}"


@pytest.mark.parametrize(
    ("page", "to"),
    [("README.md", "to"), ("README.zh.md", "到"), ("docs/versions.md", "to")],
)
def test_pages_name_the_versions_that_are_known(page: str, to: str) -> None:
    text = " ".join((ROOT / page).read_text().split())
    assert KNOWN.format(to=to) in text
    assert len({*re.findall(rf"\b2\.9 {to} (2\.\d+)", text)}) == 1


def test_a_rule_holds_from_its_version_on() -> None:
    assert _core.torch_rules()["writes_host_segments"] == (2, 14)
    assert not versions.follows("writes_host_segments", (2, 13))
    assert versions.follows("writes_host_segments", (2, 14))
    assert versions.follows("writes_host_segments", (3, 0))


def test_every_rule_is_of_a_known_version() -> None:
    assert {
        versions.OLDEST < since <= versions.NEWEST for since in _core.torch_rules().values()
    } == {True}


def test_a_newer_version_has_the_companions_of_the_newest_known_one() -> None:
    assert versions.companions((2, 99)) == versions.companions(versions.NEWEST)
