"""Makes the text of docs/gallery.md."""

from __future__ import annotations

from collections.abc import Sequence

from tests.gallery.bounds import CLOSE, KNOWN, holds
from tests.gallery.figures import Figures
from tests.gallery.results import Measured, Predicted, short
from tests.gallery.scripts import Script

_MIB = 1 << 20
_HEAD = """\
# The gallery

Scripts as people write them, with the libraries that they use, unchanged: `tests/gallery`.
`make test-gallery` installs the libraries and predicts all of them; some are part of `make test`.
This page is written by `python benchmarks/gallery.py table`.
"""
_COLUMNS = """\
| script | shows | allocated | measured | | reserved | measured | |
|---|---|---|---|---|---|---|---|"""


def page(scripts: Sequence[Script], measured: Measured, predicted: Predicted) -> str:
    """Returns the page with all measurements and predictions."""
    preferred = _preferred(predicted, measured.torch)
    parts = [_HEAD, _introduction(scripts, measured, predicted)]
    for area in dict.fromkeys(script.name.split("/")[0] for script in scripts):
        rows = [
            _row(script, measured.of(script.name), _first(script.name, preferred), measured.torch)
            for script in scripts
            if script.name.startswith(f"{area}/")
        ]
        parts.append("\n".join([f"## {area}\n", _COLUMNS, *rows, ""]))
    if reasons := [f"- `{name}`: {bounds.why}." for name, bounds in sorted(KNOWN.items())]:
        parts.append("\n".join(["## What differs\n", *reasons, ""]))
    parts.append(_libraries(scripts, measured, predicted))
    return "\n".join(parts)


def _preferred(predicted: Predicted, torch: str) -> list[tuple[str, dict[str, Figures]]]:
    """Returns pairs of a PyTorch version and its predictions.

    The pair of the version `torch` comes first. The other pairs keep their order.
    """
    return sorted(predicted.figures.items(), key=lambda item: item[0] != short(torch))


def _first(
    name: str, preferred: Sequence[tuple[str, dict[str, Figures]]]
) -> tuple[str, Figures] | None:
    """Returns the first version in `preferred` that has figures for the script, and those figures.

    Returns None if no version has any.
    """
    for version, figures in preferred:
        if (found := figures.get(name)) is not None and not found.why_not:
            return version, found
    return None


def _introduction(scripts: Sequence[Script], measured: Measured, predicted: Predicted) -> str:
    names = {script.name for script in scripts}
    lines = [f"{len(names)} scripts. Peaks are in MiB, on an H200."]
    for version, figures in predicted.figures.items():
        run = [name for name in names & figures.keys() if not figures[name].why_not]
        lines.append(f"Under PyTorch {version} {len(run)} were predicted.")
    truths = {name: found for name in names if (found := measured.of(name)) is not None}
    if truths:
        same = predicted.figures.get(short(measured.torch), {})
        pairs = [
            (same[name], truth)
            for name, truth in truths.items()
            if name in same and not same[name].why_not
        ]
        close = sum(holds(found, truth) for found, truth in pairs)
        lines.append(
            f"{len(truths)} were measured on an {measured.gpu} with PyTorch {measured.torch}; of"
            f" {len(pairs)} that were predicted under the same version, {close} are within"
            f" {CLOSE.allocated:.1%} of peak allocated and {CLOSE.reserved:.1%} of peak reserved,"
            " or inside the range where sizes depend on data."
        )
    lines.append("A version in brackets is that of a prediction under another PyTorch.")
    return "\n".join(lines) + "\n"


def _row(
    script: Script, truth: Figures | None, found: tuple[str, Figures] | None, torch: str
) -> str:
    stem = script.name.split("/")[1]
    cells = [f"[{stem}](../tests/gallery/{script.name}.py)", script.shows.replace("|", "\\|")]
    version, figures = found or ("", Figures())
    real = truth or Figures()
    other = f" [{version}]" if found and version != short(torch) else ""
    peaks = (
        (figures.allocated_bytes, figures.allocated_range, real.allocated_bytes),
        (figures.reserved_bytes, figures.reserved_range, real.reserved_bytes),
    )
    for value, span, measured in peaks:
        between = f" ({_mib(span[0])} to {_mib(span[1])})" if span else ""
        off = f"{value / measured - 1:+.2%}" if value and measured else ""
        cells += [_mib(value) + between + other, _mib(measured), off]
        other = ""
    return f"| {' | '.join(cells)} |"


def _mib(value: int) -> str:
    return "-" if not value else f"{value / _MIB:.1f}"


def _libraries(scripts: Sequence[Script], measured: Measured, predicted: Predicted) -> str:
    """Returns a table of library versions, with a row for each library.

    One column lists the versions that were installed for the measurements. Each other column lists
    the versions that were installed for the predictions under one PyTorch version.
    """
    columns = {
        f"PyTorch {version}": list(figures.values())
        for version, figures in predicted.figures.items()
    }
    if measured.figures:
        columns["measured"] = list(measured.figures.values())
    names = sorted({name for script in scripts for name in script.needs})
    lines = [f"| library | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name in names:
        cells = [
            next((each.versions[name] for each in figures if name in each.versions), "-")
            for figures in columns.values()
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(["## The libraries\n", *lines, ""])
