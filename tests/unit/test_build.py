"""Tests building C++ libraries: no partial file remains, and only the user's own files load."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from plimsoll import InputError
from plimsoll.engine.gpus.card_files import CONVOLUTION
from plimsoll.torch.building import cache, prebuilt, versions
from plimsoll.torch.building.compiler import (
    Recipe,
    build,
    compile_library,
    digest_of,
    find_built,
    find_compiler,
    load,
)
from plimsoll.torch.building.tables import as_include
from plimsoll.torch.simulated.compiled.settings import compiled_folder
from plimsoll.torch.simulated.library import SIMULATED_GPU

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest.importorskip("torch")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a temporary folder that replaces the user's folder of built libraries."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir(mode=0o700)
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path / "cache" / "plimsoll"


@pytest.fixture
def recipe(tmp_path: Path, home: Path) -> Recipe:  # noqa: ARG001  it is built there
    """Returns the recipe of a library with two source files that compile quickly."""
    sources = tmp_path / "sources"
    (sources / "more").mkdir(parents=True)
    (sources / "answer.cpp").write_text(
        'int half();\nextern "C" __attribute__((visibility("default"))) int plimsoll_answer() {\n'
        "  return 2 * half();\n}\n"
    )
    (sources / "more" / "half.cpp").write_text('int half() { return\n#include "half.inc"\n; }\n')
    (sources / "more" / "half.inc").write_text("21\n")
    return Recipe("tiny", "the tiny library", sources, (), (), needs_cuda=False)


def answer(recipe: Recipe) -> int:
    return int(load(recipe).plimsoll_answer())


def test_a_library_is_built_once_and_says_so(
    recipe: Recipe, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert answer(recipe) == 42
    lines = capfd.readouterr().err.splitlines()
    assert lines[0].startswith("plimsoll: building the tiny library for PyTorch ")
    assert lines[-1].endswith(" s")
    (library,) = home.glob("*.so")
    written = library.stat().st_mtime_ns
    assert build(recipe) == library
    assert library.stat().st_mtime_ns == written
    assert capfd.readouterr().err == ""
    assert {path.name for path in home.iterdir()} == {library.name, "building.lock"}


@pytest.mark.parametrize("file", ["answer.cpp", "more/half.cpp", "more/half.inc"])
def test_every_file_that_is_compiled_in_counts(recipe: Recipe, home: Path, file: str) -> None:
    before = build(recipe)
    with (recipe.sources / file).open("a") as source:
        source.write("// changed\n")
    assert build(recipe) != before
    assert len(list(home.glob("*.so"))) == 2


def test_only_the_user_may_write_to_the_folder_of_compiled_code(home: Path) -> None:
    home.mkdir(mode=0o700, parents=True)
    home.parent.chmod(0o700)
    before = os.umask(0o002)
    try:
        (home / "compiled").mkdir()
        assert (home / "compiled").stat().st_mode & 0o777 == 0o775
        assert compiled_folder() == home / "compiled"
    finally:
        os.umask(before)
    assert (home / "compiled").stat().st_mode & 0o777 == 0o700


def test_who_shares_files_with_a_group_builds_once_too(
    recipe: Recipe, capfd: pytest.CaptureFixture[str]
) -> None:
    before = os.umask(0o002)
    try:
        build(recipe)
        capfd.readouterr()
        build(recipe)
    finally:
        os.umask(before)
    assert capfd.readouterr().err == ""


def test_folders_and_compilers_may_be_relative(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    (tmp_path / "compiler").symlink_to(shutil.which("g++") or "")
    monkeypatch.setenv("CXX", "./compiler")
    assert build(recipe).parent == tmp_path / "here" / "plimsoll"


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_a_damaged_library_is_built_again(
    recipe: Recipe, damage: str, capfd: pytest.CaptureFixture[str]
) -> None:
    library = build(recipe)
    whole = library.read_bytes()
    contents = {
        "cut": whole[:-1000],
        "changed": whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:],
        "empty": b"",
    }
    library.unlink()  # a new file, because the old one may be loaded in this process
    library.write_bytes(contents[damage])
    capfd.readouterr()
    assert build(recipe).read_bytes() == whole
    assert "is not used: it is damaged; it is built again" in capfd.readouterr().err


def test_what_does_not_compile_is_one_line_and_leaves_nothing(recipe: Recipe, home: Path) -> None:
    (recipe.sources / "answer.cpp").write_text("not C++;\n")
    with pytest.raises(InputError, match=r"could not build the tiny library: .*error"):
        build(recipe)
    assert [path.name for path in home.iterdir()] == ["building.lock"]


class TestTables:
    """Tests of data files that are compiled into a library."""

    @pytest.fixture
    def recipe(self, recipe: Recipe, tmp_path: Path) -> Recipe:
        """Returns the recipe of a library whose answer is twice the number in a data file."""
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "halves.csv").write_text("# of the answer\nvalue,unit\n21,1\n")
        (recipe.sources / "more" / "half.cpp").write_text(
            "struct Half { int value, unit; };\nconstexpr Half kHalves[] = {\n"
            '#include "halves.inc"\n};\nint half() { return kHalves[0].value; }\n'
        )
        return replace(recipe, tables=tmp_path / "data")

    def test_a_changed_one_takes_effect(self, recipe: Recipe, tmp_path: Path) -> None:
        assert answer(recipe) == 42
        (tmp_path / "data" / "halves.csv").write_text("value,unit\n4,1\n")
        assert answer(recipe) == 8

    def test_a_column_that_the_struct_has_not_does_not_compile(
        self, recipe: Recipe, tmp_path: Path
    ) -> None:
        (tmp_path / "data" / "halves.csv").write_text("value,units\n21,1\n")
        with pytest.raises(InputError, match=r"could not build the tiny library: .*units"):
            build(recipe)

    @pytest.mark.parametrize(
        ("name", "text", "problem"),
        [
            ("a.csv", "value,unit\n1,2\n1\n", "line 3: 1 numbers for 2 columns"),
            ("a.csv", "value,unit\n1,x\n", "line 2: 'x' is not a whole number"),
            ("a.csv", "# 1\n1,2\n", "line 2: the names of the columns"),
            ("a.csv", "value\n", "has no rows"),
            ("a.txt", "aten::add\nnot a name\n", "line 2: 'not a name' is not an operation's"),
            ("a.txt", "add\n\n# again\nadd\n", "line 4: add is there twice"),
            ("a.txt", "# nothing\n", "has no rows"),
            ("a.txt", "\udcff", "cannot be read: 'utf-8'"),
        ],
    )
    def test_a_bad_one_is_one_line_before_anything_is_compiled(
        self,
        recipe: Recipe,
        tmp_path: Path,
        home: Path,
        name: str,
        text: str,
        problem: str,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        path = tmp_path / "data" / name
        path.write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(InputError) as raised:
            build(recipe)
        assert str(path) in str(raised.value)
        assert problem in str(raised.value)
        assert len(str(raised.value).splitlines()) == 1
        assert capfd.readouterr().err == ""
        assert [path.name for path in home.iterdir()] == ["building.lock"]

    def test_those_of_the_simulated_gpu_are_good(self) -> None:
        assert SIMULATED_GPU.tables is not None
        made = {path.name: as_include(path) for path in SIMULATED_GPU.tables.iterdir()}
        assert set(made) == {
            "chips.csv", "composed_layouts.txt", "compressed_kernels.txt", "coordinate_kernels.txt",
            "cuda_kernels.txt", "cudnn_by_words.csv", "cudnn_fastest.csv", "cudnn_largest.csv",
            "cudnn_workspaces.csv", "kernel_times.csv", "nested_kernels.txt", "no_temporaries.txt",
        }  # fmt: skip
        assert made["no_temporaries.txt"].count("\n") > 50
        assert made["cudnn_workspaces.csv"].count("\n") > 10_000
        words = [
            CONVOLUTION.fullmatch(row.split('"')[1])
            for row in made["cudnn_by_words.csv"].splitlines()
        ]
        assert len(words) > 9_000
        assert all(words)


class TestOthers:
    """Tests with folders and files that another user could have made."""

    def test_a_library_in_a_folder_that_others_may_write_to_is_not_loaded(
        self, recipe: Recipe, home: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        planted = build(recipe)
        (recipe.sources / "more" / "half.inc").write_text("0\n")
        other = build(recipe)
        (recipe.sources / "more" / "half.inc").write_text("21\n")
        other.replace(planted)
        home.chmod(0o777)
        capfd.readouterr()
        assert build(recipe).parent != home
        assert answer(recipe) == 42
        error = capfd.readouterr().err
        assert f"{home} is not used: others may write to {home};" in error

    def test_nor_in_one_whose_parent_others_may_change(self, recipe: Recipe, home: Path) -> None:
        build(recipe)
        home.parent.chmod(0o777)
        assert build(recipe).parent != home

    def test_a_sticky_folder_is_as_good_as_ones_own(self, recipe: Recipe, home: Path) -> None:
        build(recipe)
        home.parent.chmod(0o1777)
        assert build(recipe).parent == home

    def test_a_file_that_others_may_write_to_is_built_again(
        self, recipe: Recipe, capfd: pytest.CaptureFixture[str]
    ) -> None:
        build(recipe).chmod(0o666)
        capfd.readouterr()
        assert build(recipe).stat().st_mode & 0o022 == 0
        assert "others may write to" in capfd.readouterr().err

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
    def test_a_folder_of_another_users_is_not_used(self, recipe: Recipe, home: Path) -> None:
        build(recipe)
        os.chown(home, 12345, 12345)
        assert build(recipe).parent != home

    def test_without_any_safe_folder_there_is_one_line(
        self, recipe: Recipe, home: Path, tmp_path: Path
    ) -> None:
        home.mkdir(parents=True)
        home.chmod(0o777)
        (tmp_path / "temporary").chmod(0o777)
        with pytest.raises(InputError, match=r"no cache folder .*; set XDG_CACHE_HOME"):
            build(recipe)

    def test_a_link_is_followed_once(
        self, recipe: Recipe, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "link").symlink_to(home.parent)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "link"))
        assert build(recipe).parent == home
        assert cache.who_else_may_write(tmp_path / "link") == f"{tmp_path / 'link'} is a link"


def wait_until(what: Callable[[], bool]) -> None:
    for _ in range(2400):
        if what():
            return
        time.sleep(0.05)
    raise AssertionError("it took too long")


def is_running(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().split()[2]
    except OSError:
        return False


def obey_signals() -> None:
    """Restores the default handling of signals in a new process.

    If nohup runs the tests, they ignore SIGHUP, and a process that they start would ignore it too.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


SLOW = """
import sys
from pathlib import Path
from plimsoll.torch.building.compiler import Recipe, build
build(Recipe("tiny", "the tiny library", Path(sys.argv[1]), (), (), needs_cuda=False))
"""


class TestKilled:
    """Tests with a compiler that never ends, and a user who stops the build."""

    @pytest.fixture
    def started(
        self, recipe: Recipe, home: Path, tmp_path: Path
    ) -> Iterator[subprocess.Popen[bytes]]:
        compiler = tmp_path / "compiler"
        compiler.write_text(
            "#!/bin/sh\nsleep 1000 &\necho $! > sleeping.txt\ntouch half-made.o\nwait\n"
        )
        compiler.chmod(0o755)
        process = subprocess.Popen(
            [sys.executable, "-c", SLOW, str(recipe.sources)],
            env={**os.environ, "CXX": str(compiler)},
            stderr=subprocess.DEVNULL,
            preexec_fn=obey_signals,
        )
        try:
            wait_until(lambda: bool(list(home.glob("*/half-made.o"))))
            yield process
        finally:
            process.kill()
            process.wait()

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_a_build_that_is_asked_to_end_leaves_nothing(
        self, started: subprocess.Popen[bytes], home: Path, number: signal.Signals
    ) -> None:
        started.send_signal(number)
        assert started.wait(120) != 0
        assert [path.name for path in home.iterdir()] == ["building.lock"]

    def test_a_killed_build_takes_its_compilers_along_and_the_next_one_clears_up(
        self, started: subprocess.Popen[bytes], recipe: Recipe, home: Path
    ) -> None:
        (note,) = home.glob("*/sleeping.txt")
        compiler = int(note.read_text())
        assert is_running(compiler)
        started.kill()
        started.wait(120)
        wait_until(lambda: not is_running(compiler))
        assert not list(home.glob("*.so"))
        library = build(recipe)
        assert {path.name for path in home.iterdir()} == {library.name, "building.lock"}


class TestPrebuilt:
    """Tests of a library from a wheel, prebuilt for PyTorch 2.13.0."""

    @pytest.fixture
    def brought(
        self, recipe: Recipe, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Path:
        """Returns the prebuilt library's file, and makes the compiler unavailable."""
        library = tmp_path / prebuilt.file_name(recipe.name, "2.13.0", digest_of(recipe))
        build(recipe).rename(library)
        shutil.rmtree(home)
        monkeypatch.setattr(prebuilt, "FOLDER", tmp_path)
        monkeypatch.setenv("CXX", "no-such-compiler")
        return library

    @pytest.mark.parametrize("installed", ["2.13.0", "2.13.0+cpu", "2.13.0+cu130"])
    def test_it_serves_the_cpu_and_cuda_builds_and_nothing_is_written(
        self,
        recipe: Recipe,
        brought: Path,
        home: Path,
        installed: str,
        monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setattr(versions, "torch_build", lambda: installed)
        capfd.readouterr()
        assert find_built(recipe) == build(recipe) == brought
        assert answer(recipe) == 42
        assert capfd.readouterr().err == ""
        assert not home.exists()

    @pytest.mark.usefixtures("brought")
    @pytest.mark.parametrize(
        "installed", ["2.13.1", "2.13.0+rocm7.0", "2.13.0a0+git12ab", "2.13.0.dev20260101", "2.13"]
    )
    def test_for_another_build_it_is_compiled_and_a_line_says_so(
        self,
        recipe: Recipe,
        home: Path,
        installed: str,
        monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setattr(versions, "torch_build", lambda: installed)
        monkeypatch.delenv("CXX")
        capfd.readouterr()
        assert find_built(recipe) is None
        assert build(recipe).parent == home
        assert capfd.readouterr().err.splitlines()[0] == (
            f"plimsoll: building the tiny library for PyTorch {installed}, once, about a minute; "
            "this wheel brings it for the CPU and CUDA builds of PyTorch 2.13.0"
        )

    def test_without_a_compiler_the_error_names_the_releases_in_order(
        self, recipe: Recipe, brought: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shutil.copy2(brought, brought.with_name(prebuilt.file_name("tiny", "2.9.1", "0")))
        monkeypatch.setattr(versions, "torch_build", lambda: "2.13.1")
        with pytest.raises(
            InputError, match=r"or set CXX; this wheel .* PyTorch 2\.9\.1, 2\.13\.0$"
        ):
            build(recipe)

    def test_that_of_another_plimsoll_is_not_used(self, recipe: Recipe, brought: Path) -> None:
        (recipe.sources / "more" / "half.inc").write_text("4\n")
        assert find_built(recipe) is None
        (recipe.sources / "more" / "half.inc").write_text("21\n")
        assert find_built(recipe) == brought

    def test_where_the_sources_lie_does_not_matter(
        self, recipe: Recipe, brought: Path, tmp_path: Path
    ) -> None:
        elsewhere = tmp_path / "elsewhere"
        shutil.copytree(recipe.sources, elsewhere)
        included = replace(recipe, flags=(f"-I{recipe.sources}/more",))
        moved = replace(recipe, sources=elsewhere, flags=(f"-I{elsewhere}/more",))
        assert digest_of(included) == digest_of(moved)
        assert find_built(included) is None
        assert find_built(replace(recipe, sources=elsewhere)) == brought

    def test_it_finds_pytorchs_libraries_wherever_they_are(
        self, recipe: Recipe, tmp_path: Path
    ) -> None:
        linked = replace(recipe, libraries=("c10",))
        library = tmp_path / prebuilt.file_name("tiny", RELEASE, digest_of(linked))
        place = tmp_path / "place"
        place.mkdir()
        compiler, torch = find_compiler("a test"), versions.torch_folder()
        compile_library(linked, place / "made.so", [compiler], torch, [], lambda _: None)
        (place / "made.so").rename(library)
        done = subprocess.run(
            [sys.executable, "-c", LOADED, str(tmp_path), str(recipe.sources)],
            env={**os.environ, "CXX": "no-such-compiler"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.stdout, done.stderr) == ("42\n", "")


RELEASE = versions.torch_build().split("+")[0]
LOADED = """
import sys
from pathlib import Path
from plimsoll.torch.building import prebuilt
from plimsoll.torch.building.compiler import Recipe, load
prebuilt.FOLDER = Path(sys.argv[1])
recipe = Recipe("tiny", "the tiny library", Path(sys.argv[2]), (), ("c10",), needs_cuda=False)
print(load(recipe).plimsoll_answer())
"""


class TestNewerPyTorch:
    """Tests with a PyTorch that is newer than this version of plimsoll."""

    @pytest.fixture(autouse=True)
    def newer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(versions, "torch_build", lambda: "2.99.1")
        monkeypatch.setattr(versions, "torch_version", lambda: (2, 99))

    def test_it_is_told_once_in_one_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        versions.tell_if_unknown.cache_clear()
        versions.tell_if_unknown()
        versions.tell_if_unknown()
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(
            "plimsoll: PyTorch 2.99.1 is newer than what this version knows (2.9"
        )

    def test_it_gets_the_rules_of_the_newest_that_is_known(self) -> None:
        assert versions.rules_version() == versions.text(versions.NEWEST)

    def test_a_library_that_works_is_kept(self, recipe: Recipe) -> None:
        assert build(replace(recipe, check="this")).exists()

    def test_one_that_does_not_is_one_line_and_not_kept(
        self, recipe: Recipe, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "failing.py").write_text("import sys; sys.exit('the backward pass fails')")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        with pytest.raises(
            InputError, match=r"does not work under PyTorch 2\.99\.1.*: the backwar"
        ):
            build(replace(recipe, check="failing"))
        assert not list(home.glob("*.so"))
