"""Tests that each folder of the core includes neither later folders of ORDER nor bindings."""

from __future__ import annotations

import re
from pathlib import Path

from tests.includes import circle, included, sources

ROOT = Path(__file__).parents[2]
HEADERS = ROOT / "core" / "include" / "plimsoll"
SOURCES = ROOT / "core" / "src"
BINDINGS = ROOT / "bindings"
C_INTERFACES = ROOT / "src" / "plimsoll" / "include" / "plimsoll"
ORDER = (
    "base", "driver", "simulated", "events", "formats", "planning", "allocator",
    "allocator/host", "allocator/native", "allocator/elastic/books", "allocator/elastic/plan",
    "allocator/elastic/apply", "allocator/elastic", "allocator/wheel", "replay", "engine",
)  # fmt: skip
SHARED = {
    "plimsoll/torch_versions.h", "plimsoll/torch_versions.inc", "plimsoll/wheel_api.h",
}  # fmt: skip
"""Headers that both the core and the separately built libraries include."""
# An allocator must not know whether its driver is simulated or real, nor whether its requests come
# from a program or from a recorded history.
UNKNOWN_TO_ALLOCATORS = {"simulated", "formats"}
UNKNOWN_TO_RECORDS = {"driver", "simulated"}


def may_include(folder: str) -> set[str]:
    """Returns the folders whose headers the files of a folder may include."""
    before = {*ORDER[: ORDER.index(folder) + 1]}
    if folder.startswith("allocator"):
        return before - UNKNOWN_TO_ALLOCATORS
    return before - UNKNOWN_TO_RECORDS if folder in {"events", "formats"} else before


def core() -> dict[Path, str]:
    """Returns each file of the core with its folder."""
    return {
        path: str(path.parent.relative_to(root))
        for root in (HEADERS, SOURCES)
        for path in sources(root)
    }


def test_the_order_names_every_folder() -> None:
    assert {*core().values()} == {*ORDER}


def test_folders_include_only_those_before_them() -> None:
    wrong = {
        (str(path.relative_to(ROOT)), name)
        for path, folder in core().items()
        for name in {*included(path)} - SHARED
        if str(Path(name).parent) not in {f"plimsoll/{other}" for other in may_include(folder)}
    }
    assert wrong == set()


def impurities(code: str) -> list[str]:
    """Returns the forbidden words in code of allocator/elastic/plan.

    This code must not use a driver, nor mutable references to the allocator's records
    (allocator/elastic/books).
    """
    code = re.sub(r"//.*", "", code)
    return re.findall(r"(?<!const )\b(?:MappedSpace|Arenas?|Ledger|Lending)&|\bDriver\w*", code)


def test_plans_read_books_and_call_no_driver() -> None:
    assert impurities("void f(const Arena& a, MappedSpace& b);  // Arena& c") == ["MappedSpace&"]
    assert impurities("Status f(Driver& driver)") == ["Driver"]
    plans = [path for path, folder in core().items() if folder == "allocator/elastic/plan"]
    assert plans
    assert [(path.name, found) for path in plans if (found := impurities(path.read_text()))] == []


def test_books_call_no_driver() -> None:
    books = [path for path, folder in core().items() if folder == "allocator/elastic/books"]
    assert books
    for path in books:
        assert "Driver" not in re.sub(r"//.*", "", path.read_text()), path


def test_own_headers_are_between_quotes() -> None:
    for path in (*core(), *sources(BINDINGS)):
        assert re.search(r"# *include *<plimsoll", path.read_text()) is None, path


def test_no_circle_of_headers() -> None:
    assert circle({"a": ["b"], "b": ["c", "d"], "c": [], "d": ["b"]}) == ["b", "d"]
    assert circle({"a": ["b", "c"], "b": ["c"], "c": []}) == []
    of_core = {f"plimsoll/{path.relative_to(HEADERS)}": included(path) for path in sources(HEADERS)}
    assert circle(of_core) == []
    assert circle({path.name: included(path) for path in BINDINGS.glob("*.h")}) == []


def test_the_core_knows_no_bindings() -> None:
    of_bindings = {path.name for path in BINDINGS.glob("*.h")}
    of_bindings |= {f"plimsoll/{path.name}" for path in C_INTERFACES.glob("*.h")}
    for path in core():
        assert ({*included(path)} - SHARED).isdisjoint(of_bindings), path
