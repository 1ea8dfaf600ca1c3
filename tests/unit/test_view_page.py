"""Tests the HTML file that `plimsoll view` writes, and how its script is joined from modules."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll import InputError
from plimsoll.base.printable import printable
from plimsoll.page import assets
from plimsoll.page.assets import join_modules, page_template
from plimsoll.page.document import make_page
from plimsoll.page.page_file import view
from plimsoll.page.run import prepare
from plimsoll.recordings.events import Action
from plimsoll.recordings.reading import read_recording
from tests.recordings import EXAMPLES
from tests.unit.packed_columns import unpack_column
from tests.unit.view_histories import KiB, Row, recording_of

RECORDING = EXAMPLES / "gpt2_adamw.pickle.gz"
HOSTILE = "</script><script>document.title='owned'</script><!--<img src=x onerror=alert(1)>&\u2028"
WEB = (Path(assets.__file__).parent / "web").resolve()
_FROM = re.compile(r'from "(\.[^"]+)"')
ROWS: list[Row] = [(int(Action.ALLOC), 4096, 512, 0, 1, 0)]


def data_of(html: str) -> dict[str, Any]:
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', html)
    assert text is not None
    data: dict[str, Any] = json.loads(text[1])
    return data


def test_the_page_lies_beside_the_recording_and_has_its_name(tmp_path: Path) -> None:
    recording = tmp_path / "run.pickle.gz"
    shutil.copy(RECORDING, recording)
    result = view(recording)
    assert result.page == str(tmp_path / "run.html")
    assert result.page_bytes == (tmp_path / "run.html").stat().st_size
    assert result.to_dict() == {
        "page": result.page, "page_bytes": result.page_bytes, "events": 14817, "blocks": 4899,
        "blocks_summed_up": 0, "summed_up_below_bytes": None,
    }  # fmt: skip
    assert view(recording, recording).page == str(tmp_path / "run-and-run.html")


def test_a_page_is_overwritten_only_if_that_is_wanted(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("mine")
    with pytest.raises(InputError, match=r"exists already and is not overwritten; --force"):
        view(RECORDING, output=page)
    assert page.read_text() == "mine"
    view(RECORDING, output=page, force=True)
    assert page.read_text().startswith("<!doctype html>")
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(InputError, match="is a directory"):
        view(RECORDING, output=tmp_path, force=True)
    with pytest.raises(InputError, match="cannot be written"):
        view(RECORDING, output=tmp_path / "nowhere" / "page.html")


def test_the_policy_allows_the_script_and_the_style_of_the_page_and_no_connection() -> None:
    html = make_page([prepare(recording_of(ROWS))]).html
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))

    def hash_of(start: str, end: str) -> str:
        text = html.split(start, 1)[1].split(end, 1)[0]
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    script = hash_of('<script type="module">', "</script>")
    style = hash_of("<style>", "</style>")
    assert rules == {
        "default-src": "'none'",
        "script-src": f"'sha256-{script}'",
        "style-src": f"'sha256-{style}'",
        "img-src": "data:",
        "connect-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    outside = re.findall(r"(?:https?:)?//[a-z][\w.-]+\.[a-z]{2,}", html)
    assert outside == [], "nothing in the page names another host"


def test_text_from_a_recording_cannot_leave_its_place() -> None:
    stacks = {1: [(f"/home/{HOSTILE}.py", 3, HOSTILE)]}
    recording = recording_of(ROWS, stacks=stacks, name=HOSTILE)
    plain = make_page([prepare(recording_of(ROWS))]).html
    html = make_page([prepare(recording)]).html
    assert html.count("<script") == plain.count("<script")
    assert html.count("<!--") == plain.count("<!--") == 0
    assert "onerror=alert(1)>" not in html
    (run,) = data_of(html)["runs"]
    assert printable(HOSTILE) in run["devices"][0]["stacks"]["strings"]


def test_every_device_is_in_the_page() -> None:
    data = data_of(make_page([prepare(recording_of(ROWS, devices=3))]).html)
    (run,) = data["runs"]
    assert [device["device"] for device in run["devices"]] == [0, 1, 2]


def test_the_overview_of_a_recording_has_its_peak() -> None:
    data = data_of(make_page([prepare(read_recording(RECORDING))]).html)
    (device,) = data["runs"][0]["devices"]
    high = unpack_column(device["overview"]["high"])
    for key in device["keys"]:
        columns = [unpack_column(column) for column in key["bytes"]]
        assert np.array_equal(np.sum(columns, axis=0), high)


def test_a_page_of_a_small_recording_is_small() -> None:
    rows = [(int(Action.ALLOC), 4096 * i, KiB, 0, 0, 0) for i in range(100)]
    assert len(make_page([prepare(recording_of(rows))]).html) < 220_000


def test_sizes_that_no_machine_has_are_refused() -> None:
    rows = [(int(Action.ALLOC), 4096, 2**63, 0, 0, 0)]
    with pytest.raises(InputError, match="beyond any machine's memory"):
        prepare(recording_of(rows))


NUMBERS = st.one_of(st.integers(0, 8), st.integers(0, 2**64 - 1), st.just(2**53))


@given(
    st.lists(st.tuples(st.integers(0, 8), *[NUMBERS] * 3, st.integers(0, 3), NUMBERS), min_size=1)
)
def test_any_history_makes_a_page_or_is_refused(rows: list[Row]) -> None:
    try:
        page = make_page([prepare(recording_of(rows))])
    except InputError:  # values that no real machine has
        pass
    else:
        assert data_of(page.html)["runs"][0]["devices"][0]["events"] == len(rows)


MODULES = {
    "main.js": 'import { two } from "./parts/two.js";\n'
    'import {\n  one,\n} from "./one.js";\nshow(one, two);\n',
    "parts/two.js": 'import { one } from "../one.js";\nexport const two = one + 1;\n',
    "one.js": "/** @type {number} */\nexport const one = 1;\n"
    "export async function later() {}\nconst own = 2;\n",
    "other.js": "export const unused = 0;\n",
}


def test_modules_are_joined_after_what_they_import() -> None:
    assert join_modules(MODULES, "main.js") == (
        "const $0 = (() => { // one.js\n"
        "const one = 1;\nasync function later() {}\nconst own = 2;\n"
        "return { one, later };\n})();\n"
        "const $1 = (() => { // parts/two.js\n"
        "const { one } = $0;\nconst two = one + 1;\nreturn { two };\n})();\n"
        "const $2 = (() => { // main.js\n"
        "const { two } = $1;\nconst { one } = $0;\nshow(one, two);\nreturn {  };\n})();\n"
    )


@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        ("one.js", 'import { two } from "./parts/two.js";\nexport const one = 1;\n',
         "a circle of imports: main.js → parts/two.js → one.js → parts/two.js"),
        ("one.js", "export default 1;\n", "unknown way: export default 1;"),
        ("one.js", "const one = 1;\n", r"two.js imports \['one'\], not exported by one.js"),
        ("one.js", "export let one = 1;\n", "one.js imports or exports in an unknown way"),
        ("one.js", "const one = 1;\nexport { one };\n", "unknown way: export { one };"),
        ("main.js", 'import * as all from "./one.js";\n', "unknown way: import"),
        ("main.js", 'import { one as first } from "./one.js";\n', "imports"),
        ("main.js", 'import one from "./one.js";\n', "unknown way: import one"),
        ("main.js", 'import "./one.js";\n', "unknown way"),
        ("main.js", 'const one = await import("./one.js");\n', "unknown way: import"),
        ("main.js", 'import { one } from "./none.js";\n', "main.js imports none.js, which is not"),
    ],
)  # fmt: skip
def test_what_cannot_be_joined_is_an_error(path: str, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        join_modules(MODULES | {path: text}, "main.js")


def test_no_module_of_the_page_is_in_a_circle_or_unused() -> None:
    """Counts the imports in JSDoc comments as well, although they only import types."""
    imports = {
        path: {(path.parent / name).resolve() for name in _FROM.findall(path.read_text())}
        for path in sorted(WEB.rglob("*.js"))
    }
    first = {WEB / "main.js", WEB / "ranks" / "start.js"}
    assert set().union(*imports.values()) == set(imports) - first
    left = dict(imports)
    while free := [path for path, names in left.items() if not names & left.keys()]:
        for path in free:
            del left[path]
    assert [path.relative_to(WEB).as_posix() for path in left] == []


def test_every_style_sheet_is_in_the_page() -> None:
    html = make_page([prepare(recording_of(ROWS))]).html
    html += page_template("ranks.html")
    sheets = [path.read_text() for path in WEB.rglob("*.css")]
    assert len(sheets) > 1
    assert all(sheet in html for sheet in sheets)
    html = html.replace("@DATA@", "").replace("@CONNECT@", "")
    assert not re.search(r"@[A-Z]+@|<link rel=\"stylesheet|<script [^>]*src=", html)


def test_a_script_cannot_end_its_element() -> None:
    script = 'const end = "</script>";\nconst open = "<!--";\n'
    joined = join_modules({"main.js": script}, "main.js")
    assert "</script" not in joined
    assert "<!--" not in joined
