"""Notes the options of the script's command line, as `argparse` parsed them.

Also ends a script that does not have the option that `plimsoll fit` is to vary.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from plimsoll.base.watchers import standing_in
from plimsoll.prediction.survey import ArgumentUse, no_such_option

if TYPE_CHECKING:
    from plimsoll.base.watchers import Watchers


class NoSuchOptionError(Exception):
    """The script's command line does not have the option to vary."""


class Arguments:
    """Observes every parsed command line.

    Args:
        watchers: Reports errors of this class.
        varied: An option that the script should have; None for any script.
    """

    def __init__(self, watchers: Watchers, varied: str | None = None) -> None:
        self._watchers = watchers
        self._varied = varied
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
        if self._varied is not None:
            self._check(self._varied)

    def _check(self, varied: str) -> None:
        parse = argparse.ArgumentParser.parse_args
        lacks = self._watchers.guarded("the option to vary", _lacks)

        def checked(parser: Any, args: Any = None, *given: Any, **named: Any) -> Any:
            # With other arguments than those of the command line, nothing is known of the option.
            if args is None and lacks(parser, varied):
                raise NoSuchOptionError(no_such_option(varied, parser._option_string_actions))
            return parse(parser, args, *given, **named)

        standing_in(parse, checked)
        argparse.ArgumentParser.parse_args = checked  # type: ignore[method-assign,assignment]

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


def _lacks(parser: Any, option: str) -> bool:
    """Returns whether a command line with this option would be an error."""
    if any(isinstance(each, argparse._SubParsersAction) for each in parser._actions):
        return False  # the option may belong to a command
    names = parser._option_string_actions
    return not any(
        name == option or (parser.allow_abbrev and name.startswith(option)) for name in names
    )
