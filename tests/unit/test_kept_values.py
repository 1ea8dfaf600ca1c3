"""Tests that plimsoll finds the statement in a loop that keeps a tensor, and advises a patch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from plimsoll.recordings.causes.kept_values import kept_value

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """\
for x in data:
    output = model(x)
    loss = loss_of(output)
    losses.append(loss)
    outputs.append(output)
    total += loss_of(x) - 1
    best = best + model(x)
    names.append(loss.item())
    for y in x:
        model(y)
    copies.append(output.detach().clone())
last = model(x)
"""


@pytest.mark.parametrize(
    ("line", "is_number", "patch"),
    [
        (2, False, "outputs.append(output.detach().cpu())"),
        (3, True, "losses.append(loss.item())"),
        (4, None, "losses.append(loss.detach().cpu())"),
        (6, None, "total += (loss_of(x) - 1).item()"),
        (7, False, "best = best + model(x).detach()"),
        (8, True, None),
        (10, True, None),
        (11, False, "copies.append(output.detach().clone().cpu())"),
        (12, True, None),
        (99, True, None),
    ],
)
def test_the_statement_that_keeps_a_value_keeps_no_graph_of_it(
    line: int, is_number: bool | None, patch: str | None, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    found = kept_value(f"{script}:{line} main", is_number=is_number)
    assert (found and found.patch) == patch


@pytest.mark.parametrize(("name", "text"), [("train.py", "for x in"), ("train.txt", PROGRAM)])
def test_what_is_no_source_is_not_read(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert kept_value(f"{tmp_path / name}:4 main", is_number=True) is None
    assert kept_value(f"{tmp_path / 'missing.py'}:4 main", is_number=True) is None


@pytest.mark.parametrize(
    ("lines", "patch"),
    [
        (["right = (output.argmax(1) == y).sum()", "correct += right",
          "loss = output.square().mean()", "total += loss"], "total += loss.item()"),
        (["loss = criterion(output, y > 0) / len(x)", "total += loss"], "total += loss.detach()"),
        (["losses = loss_of(output)", "kept.append(losses)"], "kept.append(losses.detach().cpu())"),
        (["seen = output.shape[0]", "count += seen"], None),
        (["pred = output.data.max(1)[1]", "right = pred.eq(y).sum()", "correct += right"], None),
        (["output = output.detach()", "score = loss_of(output)", "scores += score"], None),
        (["feature = output.mean(0)", "features += feature"], None),
    ],
)  # fmt: skip
def test_a_loss_that_is_computed_from_the_result_keeps_its_graph(
    lines: list[str], patch: str | None, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("\n    ".join(["for x, y in data:", "output = model(x)", *lines]) + "\n")
    found = kept_value(f"{script}:2 main", is_number=False)
    assert (found and found.patch) == patch
