"""Tests which folders a trial run of a script sees through overlay mounts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from plimsoll.prediction.trials import overlay
from plimsoll.prediction.trials.overlay import Shown

if TYPE_CHECKING:
    from pathlib import Path


def shown(root: Path, mounts: list[Path], most: int = 9) -> dict[str, Shown]:
    steps = overlay._folder_anew(root, frozenset(mounts), most)
    return {str(place.relative_to(root)): how for how, place in steps}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("home/me/data", "home/me/code", "home/other", "usr/lib"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "home/me/notes").touch()
    (tmp_path / "lib").symlink_to("usr/lib")
    return tmp_path


def test_a_folder_without_mounts_below_has_an_overlay(root: Path) -> None:
    assert shown(root, [root / "home"]) == {
        "home": Shown.OVERLAID, "lib": Shown.LINK, "usr": Shown.OVERLAID,
    }  # fmt: skip


def test_a_folder_with_a_mount_below_is_made_anew_with_overlays_in_it(root: Path) -> None:
    assert shown(root, [root / "home/me/data"]) == {
        "home": Shown.ANEW, "home/me": Shown.ANEW, "home/me/code": Shown.OVERLAID,
        "home/me/data": Shown.OVERLAID, "home/me/notes": Shown.READ_ONLY,
        "home/other": Shown.OVERLAID, "lib": Shown.LINK, "usr": Shown.OVERLAID,
    }  # fmt: skip


def test_a_folder_with_a_mount_below_and_many_entries_is_read_only(root: Path) -> None:
    found = shown(root, [root / "home/me/data"], most=2)
    assert found["home"] is Shown.ANEW
    assert found["home/me"] is Shown.READ_ONLY
    assert "home/me/code" not in found


def test_names_of_mounts_are_read_without_their_escapes() -> None:
    assert overlay._plain(rb"/mnt/a\040b\134c") == rb"/mnt/a b\c"
