"""Tests plimsoll's writing of files.

A file is written whole or not at all. An existing file is replaced only with `force`.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from plimsoll import InputError
from plimsoll.base.files import NewFile, check_can_be_made, check_is_new
from tests.faults import limited_files


@pytest.fixture(params=["with hard links", "without"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    if request.param == "without":
        monkeypatch.setattr(os, "link", refuse)
    return tmp_path


def write(path: Path, then: Callable[[], object] = lambda: None) -> None:
    with NewFile(path) as file:
        file.write(b"theirs")
        then()


def fail() -> None:
    raise KeyError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_whole_in_the_end(folder: Path) -> None:
    with NewFile(folder / "page") as file:
        file.write(b"all of it")
        assert not (folder / "page").exists()
    assert names(folder) == ["page"]
    assert (folder / "page").read_bytes() == b"all of it"
    assert (folder / "page").stat().st_mode & 0o777 == 0o600


def test_what_fails_leaves_nothing(folder: Path) -> None:
    with pytest.raises(KeyError):
        write(folder / "page", fail)
    assert names(folder) == []


def test_another_file_is_never_overwritten(folder: Path) -> None:
    path = folder / "page"
    path.write_text("mine")
    with pytest.raises(
        InputError, match=r"page: exists already and is not overwritten; name another file$"
    ):
        NewFile(path).__enter__()
    assert (names(folder), path.read_text()) == (["page"], "mine")


def test_not_even_one_that_appeared_meanwhile(folder: Path) -> None:
    path = folder / "page"
    with pytest.raises(InputError, match="exists already"):
        write(path, lambda: path.write_text("mine"))
    assert (names(folder), path.read_text()) == (["page"], "mine")


def test_of_many_that_want_a_name_one_gets_it(folder: Path) -> None:
    meet = threading.Barrier(8)
    won: list[bytes] = []

    def write(content: bytes) -> None:
        try:
            with NewFile(folder / "page") as file:
                file.write(content)
                meet.wait()
        except InputError:
            return
        won.append(content)

    threads = [threading.Thread(target=write, args=(b"%d" % n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [(folder / "page").read_bytes()]
    assert names(folder) == ["page"]


def test_force_replaces_a_file_and_only_when_all_went_well(folder: Path) -> None:
    path = folder / "page"
    path.write_text("old")
    with pytest.raises(InputError, match="not overwritten; --force overwrites it"):
        NewFile(path, force=False).__enter__()
    with pytest.raises(KeyError), NewFile(path, force=True):
        raise KeyError
    assert path.read_text() == "old"
    with NewFile(path, force=True) as file:
        file.write(b"new")
    assert (names(folder), path.read_text()) == (["page"], "new")


def test_a_folder_is_no_file(folder: Path) -> None:
    for force in (None, False, True):
        with pytest.raises(InputError, match="is a directory"):
            NewFile(folder, force=force).__enter__()


def test_a_folder_that_is_not_there_is_told(folder: Path) -> None:
    with pytest.raises(InputError, match="page: cannot be written: No such file or directory"):
        NewFile(folder / "none" / "page").__enter__()


@pytest.mark.parametrize("failing", [1, 1 << 20], ids=["when it is closed", "while it is written"])
def test_a_full_disk_is_told_with_the_files_name(tmp_path: Path, failing: int) -> None:
    with (
        limited_files(0),
        pytest.raises(InputError, match="page: cannot be written: File too large"),
        NewFile(tmp_path / "page") as file,
    ):
        file.write(b"a" * failing)
    assert names(tmp_path) == []


def test_what_fails_in_another_file_is_not_said_of_this_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="other"):
        write(tmp_path / "page", lambda: (tmp_path / "other").read_bytes())
    assert names(tmp_path) == []


def test_a_folder_that_one_may_not_write_in_is_told_before_long_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_can_be_made(folder / "page")
    # Root may write everywhere, so the test makes os.access refuse writing to the folder.
    monkeypatch.setattr(os, "access", lambda place, mode: (place, mode) != (folder, os.W_OK))
    with pytest.raises(InputError, match="page: cannot be written: Permission denied"):
        check_can_be_made(folder / "page")


@pytest.mark.parametrize("force", [None, False])
@pytest.mark.parametrize("target", ["there", "not there"])
def test_nothing_is_written_through_a_link(folder: Path, target: str, force: bool | None) -> None:
    (folder / "there").write_text("mine")
    (folder / "page").symlink_to(folder / target)
    with pytest.raises(InputError, match="page: exists already and is not overwritten"):
        NewFile(folder / "page", force=force).__enter__()
    with pytest.raises(InputError, match="page: is a link, and links are not followed"):
        check_is_new(folder / "page")
    assert names(folder) == ["page", "there"]
    assert (folder / "there").read_text() == "mine"


def test_force_replaces_a_link_and_not_what_it_leads_to(folder: Path) -> None:
    (folder / "there").write_text("mine")
    (folder / "page").symlink_to(folder / "there")
    with NewFile(folder / "page", force=True) as file:
        file.write(b"new")
    assert not (folder / "page").is_symlink()
    assert (folder / "there").read_text() == "mine"


def test_a_name_that_cannot_be_given_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(InputError, match="page: cannot be written: Input/output error"):
        write(tmp_path / "page")
    assert names(tmp_path) == []
