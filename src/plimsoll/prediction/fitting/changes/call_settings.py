"""Changes arguments of calls in a script's text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.prediction.fitting.script_text import indentation

if TYPE_CHECKING:
    import ast
    from collections.abc import Mapping

    from plimsoll.prediction.fitting.script_text import ScriptText


def with_settings(script: ScriptText, call: ast.Call, settings: Mapping[str, str | None]) -> str:
    """Returns a call's text with these arguments set; an argument that is None is removed."""
    given = [script.text_of(each) for each in call.args]
    left = dict(settings)
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg not in left:
            given.append(keyword_text(script, keyword))
        elif (value := left.pop(keyword.arg)) is not None:
            given.append(f"{keyword.arg}={value}")
    given += [f"{name}={value}" for name, value in left.items() if value is not None]
    return f"{script.text_of(call.func)}({_listed(script, call, given)})"


def _listed(script: ScriptText, call: ast.Call, given: list[str]) -> str:
    """Joins a call's arguments: one on each line if the first argument begins a new line."""
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    first = min((each.lineno for each in values), default=call.lineno)
    if first == call.lineno:
        return ", ".join(given)
    margin = indentation(script.lines[first - 1])
    end = indentation(script.lines[(call.end_lineno or first) - 1])
    return "\n" + "".join(f"{margin}{each},\n" for each in given) + end


def keyword_text(script: ScriptText, keyword: ast.keyword) -> str:
    """Returns text such as "lr=1e-3" or "**options"."""
    text = script.text_of(keyword.value)
    return f"**{text}" if keyword.arg is None else f"{keyword.arg}={text}"
