"""The layout of `--help`: verbs and options stand under headings, and an example comes last."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "Script": ("module",),
    "Model instead of a script": ("model", "recipe", "batch_size", "seq_len", "save_recipe"),
    "Search": ("vary", "start", "at_most", "multiple_of", "exact", "headroom", "results"),
    "Changes to the script, without --vary": ("within", "apply", "tries", "plot", "view"),
    "Cards": ("simulate", "gpu", "gpus", "driver", "dedicated", "used"),
    "Host memory": ("host_memory", "shared", "policy"),
    "Job of several processes": ("nproc_per_node", "nnodes", "world", "ranks"),
    "Allocator": ("allocator", "conf", "cupy", "numba", "rmm"),
    "Run": ("steps", "at_most_events", "values", "unknown", "keep_writes", "network"),
}
"""The headings, each with the parameters that stand under it, in the order of the help."""
_OTHERS = "Options"
_PURPOSE_OF = {name: purpose for purpose, names in OPTIONS.items() for name in names}
_IN_WORDS = re.compile(r"(?<=\[default: )\((.*)\)")
"""Matches the parentheses that typer puts around a text given as `show_default`."""
_NO_BRACES = str.maketrans("", "", "{}")
_MANY = 15
"""A verb with at most this many parameters lists all its options under one heading."""


class VerbHelp(TyperCommand):
    """A verb. If it has many options, its help lists them under several headings."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Returns the words of the usage line, without typer's braces around required arguments."""
        return [piece.translate(_NO_BRACES) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes the arguments, then the options."""
        arguments: list[tuple[str, str]] = []
        options: dict[str, list[tuple[str, str]]] = {name: [] for name in (*OPTIONS, _OTHERS)}
        has_many = len(self.get_params(ctx)) > _MANY
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            if parameter.param_type_name == "argument":
                name, line = record
                arguments.append((name.partition(" <")[0], line))  # drops a type such as " <text>"
            else:
                purpose = _purpose(self, parameter.name) if has_many else _OTHERS
                options[purpose].append(record)
        _write({"Arguments": arguments, **options}.items(), formatter)


class VerbsHelp(TyperGroup):
    """The command `plimsoll` itself. Its help lists the verbs under headings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes the verbs, then the options."""
        verbs: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            verb = self.get_command(ctx, name)
            if isinstance(verb, TyperCommand):
                line = (name, verb.short_help or "")
                verbs.setdefault(verb.rich_help_panel or "Verbs", []).append(line)
        records = (parameter.get_help_record(ctx) for parameter in self.get_params(ctx))
        options = [record for record in records if record is not None]
        _write([*verbs.items(), (_OTHERS, options)], formatter)


def epilog(example: str) -> str:
    r"""Returns the end of a verb's help: an example. The `\b` stops click from wrapping it."""
    return f"\b\nExample:\n  {example}"


def _purpose(verb: TyperCommand, name: str | None) -> str:
    # The help of `fit` lists --plot and --view under the heading for changes to the script.
    # `predict` makes no changes, so its help lists the two options under the general heading.
    if verb.name == "predict" and name in ("plot", "view"):
        return _OTHERS
    return _PURPOSE_OF.get(name or "", _OTHERS)


def _write(sections: Iterable[tuple[str, list[tuple[str, str]]]], formatter: Any) -> None:
    for title, lines in sections:
        if lines:
            with formatter.section(title):
                formatter.write_dl([(name, _IN_WORDS.sub(r"\1", line)) for name, line in lines])
