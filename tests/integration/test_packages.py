"""Tests the package's requirements, and what README.md and docs/install.md say on installing.

These tests need no build. `make test-wheels` builds, installs and tries the files to publish.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from plimsoll.base.systems import ANYWHERE

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize("text", ["README.md", "docs/install.md"])
def test_what_is_said_of_installing_names_what_there_is(text: str) -> None:
    said = (ROOT / text).read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make ([\w-]+)", said):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    extras = PROJECT["project"]["optional-dependencies"]
    assert set(re.findall(r"plimsoll-gpu\[(\w+)\]", said)) <= set(extras)


def test_every_requirement_has_an_oldest_version() -> None:
    project = PROJECT["project"]
    optional = [one for extra in project["optional-dependencies"].values() for one in extra]
    every = [*project["dependencies"], *optional, *PROJECT["build-system"]["requires"]]
    assert [one for one in every if not re.fullmatch(r"[\w-]+>=[\d.]+", one)] == []


def test_pytorch_is_no_requirement_of_the_package_itself() -> None:
    names = {one.split(">")[0] for one in PROJECT["project"]["dependencies"]}
    assert names.isdisjoint({"torch", "triton", "transformers"})


def test_the_page_on_installing_names_the_releases_with_a_prebuilt_library() -> None:
    said = (ROOT / "docs" / "install.md").read_text()
    (listed,) = re.findall(r"bring it for PyTorch (.*?),\s+the\s+CPU builds", said, re.DOTALL)
    (built,) = re.findall(r"^TORCHES := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert re.findall(r"[\d.]+\d", listed) == built.split()


def test_verbs_that_work_anywhere_are_those_of_the_page_on_installing() -> None:
    said = (ROOT / "docs" / "install.md").read_text()
    (listed,) = re.findall(r"wheels for macOS and Windows.*? They have (.*?)\.", said, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", listed)) == set(ANYWHERE)
