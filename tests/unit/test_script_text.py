"""Tests changes of a script's text: their places, and that all other text stays."""

from __future__ import annotations

import ast

import pytest

from plimsoll.prediction.fitting.script_text import CannotChangeError, ScriptText

SCRIPT = '''\
"""What it does."""
from __future__ import annotations

import torch


def main():
    text = """
  kept as it is
"""
    for step in range(3):
        x = torch.zeros(3)
        y = (x
             + 1)
        y.sum().backward()
    print(text)


main()
'''


@pytest.fixture
def script() -> ScriptText:
    return ScriptText.of(SCRIPT)


def statement(script: ScriptText, line: int) -> ast.stmt:
    block, place = script.statements(script.now(line))[-1]
    return block[place]


def test_a_script_that_is_not_changed_is_as_it_was(script: ScriptText) -> None:
    assert str(script) == SCRIPT


def test_imports_come_after_those_that_are_there_and_once(script: ScriptText) -> None:
    changed = script.importing("plimsoll", "torch").importing("plimsoll")
    assert changed.lines[:5] == (
        '"""What it does."""', "from __future__ import annotations", "", "import torch",
        "import plimsoll",
    )  # fmt: skip
    assert str(changed).count("import plimsoll") == 1


def test_lines_after_a_statement_begin_where_it_begins(script: ScriptText) -> None:
    changed = script.insert_after(statement(script, 13), ["z = y"])
    assert changed.lines[12:15] == ("        y = (x", "             + 1)", "        z = y")


def test_a_block_around_statements_keeps_strings_of_several_lines(script: ScriptText) -> None:
    changed = script.wrap(statement(script, 8), statement(script, 16), "with torch.no_grad():")
    assert "\n  kept as it is\n" in str(changed)
    assert "        for step in range(3):" in changed.lines
    ast.parse(str(changed))


def test_a_block_has_lines_before_inside_and_after(script: ScriptText) -> None:
    first, last = statement(script, 12), statement(script, 15)
    changed = script.wrap(
        first, last, "for x in [x]:", before=["whole = x"], inside=["pass"], after=["x = whole"]
    )
    place = changed.lines.index("        whole = x")
    assert changed.lines[place + 1] == "        for x in [x]:"
    assert changed.lines[place + 2] == "            x = torch.zeros(3)"
    assert changed.lines[place + 6 : place + 8] == ("            pass", "        x = whole")


def test_lines_are_found_again_after_a_change(script: ScriptText) -> None:
    changed = script.importing("plimsoll").wrap(
        statement(script.importing("plimsoll"), 12), statement(script.importing("plimsoll"), 13),
        "if True:",
    )  # fmt: skip
    assert changed.lines[changed.now(15) - 1].strip() == "y.sum().backward()"
    assert ast.unparse(statement(changed, 13)) == "y = x + 1"


def test_an_expression_is_replaced_though_letters_take_several_bytes() -> None:
    script = ScriptText.of("ä = f('öö', 1); b = 2\n")
    call = script.tree.body[0]
    assert isinstance(call, ast.Assign)
    assert str(script.replace(call.value, "g(0)")) == "ä = g(0); b = 2\n"


def test_lines_of_an_expression_that_stay_keep_their_origins() -> None:
    script = ScriptText.of("x = f(\n    a,\n    b,\n)\ny = 1\n")
    (first, _) = script.tree.body
    assert isinstance(first, ast.Assign)
    changed = script.replace(first.value, "f(\n    a,\n    c,\n    d,\n)")
    assert str(changed) == "x = f(\n    a,\n    c,\n    d,\n)\ny = 1\n"
    assert changed.origins == (1, 2, None, None, 4, 5)


def test_a_statement_moves_before_others(script: ScriptText) -> None:
    changed = script.move_before(statement(script, 15), script.now(12))
    assert [line.strip() for line in changed.lines[11:14]] == [
        "y.sum().backward()", "x = torch.zeros(3)", "y = (x",
    ]  # fmt: skip
    assert changed.lines[changed.now(15) - 1].strip() == "y.sum().backward()"


def test_several_statements_in_a_line_are_not_taken_apart() -> None:
    script = ScriptText.of("a = 1; b = 2\n")
    with pytest.raises(CannotChangeError, match="several statements"):
        script.insert_after(script.tree.body[0], ["c = 3"])


def test_functions_are_found_by_their_qualified_names() -> None:
    script = ScriptText.of("class A:\n    def f(self):\n        def g():\n            pass\n")
    found = script.function("A.f.<locals>.g")
    assert isinstance(found, ast.FunctionDef)
    assert found.lineno == 3
    with pytest.raises(CannotChangeError, match=r"no function A\.h"):
        script.function("A.h")


def test_a_script_that_is_no_python_cannot_be_changed() -> None:
    with pytest.raises(CannotChangeError, match="cannot be parsed"):
        ScriptText.of("def :\n").importing("torch")


def test_the_difference_is_what_diff_says(script: ScriptText) -> None:
    changed = script.insert_after(statement(script, 12), ["x = x"])
    assert script.difference(changed, "a.py").splitlines() == [
        "--- a.py", "+++ a.py, changed", "@@ -12,2 +12,3 @@",
        "         x = torch.zeros(3)", "+        x = x", "         y = (x",
    ]  # fmt: skip
