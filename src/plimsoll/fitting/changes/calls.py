"""Calls in a script's text, with other arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ast
    from collections.abc import Mapping

    from plimsoll.fitting.script_text import ScriptText


def with_settings(script: ScriptText, call: ast.Call, settings: Mapping[str, str | None]) -> str:
    """The text of a call, with arguments set to others, or without them where these are None."""
    given = [script.text_of(each) for each in call.args]
    given += [
        keyword_text(script, keyword) for keyword in call.keywords if keyword.arg not in settings
    ]
    given += [f"{name}={value}" for name, value in settings.items() if value is not None]
    return f"{script.text_of(call.func)}({', '.join(given)})"


def keyword_text(script: ScriptText, keyword: ast.keyword) -> str:
    """As "lr=1e-3" or "**options"."""
    text = script.text_of(keyword.value)
    return f"**{text}" if keyword.arg is None else f"{keyword.arg}={text}"
