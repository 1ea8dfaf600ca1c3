"""Tests that plimsoll finds the statement in a loop that keeps a tensor, and advises a patch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from plimsoll.recordings.causes.kept_values import handed_value, kept_value

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


@pytest.mark.parametrize(
    ("kept", "later", "patch"),
    [
        ("total += loss", "print(total / 3)", "total += loss.item()"),
        ("total += loss", "print(total.item())", "total += loss.detach()"),
        ("total += loss", "total.backward()", "loss.backward()  # in each pass"),
        ("total += loss / 4", "(total + 1).backward()", "(loss / 4).backward()  # in each pass"),
        ("total += loss", "mean = total / 3; mean.backward()", "loss.backward()  # in each pass"),
        ("log['a'].append(loss)", "print(log['a'][-1])", "log['a'].append(loss.item())"),
        ("log['a'].append(loss)", "print(log['a'][-1].item())", "log['a'].append(loss.detach())"),
        ("losses.append(loss)", "torch.stack(losses).mean()", "losses.append(loss.detach())"),
        ("losses.append(loss)", "[x.cpu() for x in losses]", "losses.append(loss.detach())"),
        ("losses.append(loss)", "sum(losses).backward()", "loss.backward()  # in each pass"),
    ],
)
def test_the_patch_leaves_what_the_program_does_with_the_value_later(
    kept: str, later: str, patch: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"for x in data:\n    loss = loss_of(model(x))\n    {kept}\n{later}\n")
    found = kept_value(f"{script}:2 main", is_number=True)
    assert (found and found.patch) == patch


def test_a_name_of_another_function_is_another_variable(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    validate = "def validate():\n    for x in data:\n        total += loss_of(x)\n"
    script.write_text(f"{validate}def train():\n    total = 0\n    total.backward()\n")
    found = kept_value(f"{script}:3 validate", is_number=True)
    assert (found and found.patch) == "total += loss_of(x).item()"


@pytest.mark.parametrize(
    ("lines", "patch"),
    [
        (["h = cell(x, h)"], "h = h.detach()"),
        (["y, (h, c) = lstm(x, (h, c))"], "h, c = h.detach(), c.detach()"),
        (["h = cell(x, h)", "h = h.detach()"], None),
        (["y = first(x)", "y = second(y)"], None),
        (["x = layer(x)"], None),
    ],
)
def test_a_state_that_passes_hand_on_is_detached(
    lines: list[str], patch: str | None, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("\n    ".join(["for x in data:", *lines]) + "\n")
    found = handed_value(f"{script}:2 main")
    assert (found and found.patch) == patch
