"""Notes the options of the script's command line, as `argparse` parsed them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from plimsoll.base.watchers import standing_in
from plimsoll.prediction.survey import ArgumentUse

if TYPE_CHECKING:
    from plimsoll.base.watchers import Watchers


class Arguments:
    """Observes every parsed command line."""

    def __init__(self, watchers: Watchers) -> None:
        self._watchers = watchers
        self._uses: dict[tuple[str, ...], ArgumentUse] = {}

    def install(self) -> None:
        """Begins to observe `argparse`."""
        parse = argparse.ArgumentParser.parse_known_args
        note = self._watchers.guarded("the script's options", self._note)

        def noted(parser: Any, *given: Any, **named: Any) -> Any:
            parsed = parse(parser, *given, **named)
            note(parser, parsed)
            return parsed

        standing_in(parse, noted)
        argparse.ArgumentParser.parse_known_args = noted  # type: ignore[method-assign,assignment]

    def uses(self) -> list[ArgumentUse]:
        """Returns the options, in the order of their definition."""
        return list(self._uses.values())

    def _note(self, parser: Any, result: tuple[Any, list[str]]) -> None:
        parsed, _ = result
        for action in parser._actions:
            names = [name for name in action.option_strings if name.startswith("-")]
            if names and hasattr(parsed, action.dest):
                value = getattr(parsed, action.dest)
                plain = value if isinstance(value, int | float | str | bool) else None
                self._uses[tuple(names)] = ArgumentUse(names, plain)
