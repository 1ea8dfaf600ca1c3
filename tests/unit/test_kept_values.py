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
        ("total += loss", "mean = total + 3; mean.backward()", "loss.backward()  # in each pass"),
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


def patch_in(tmp_path: Path, text: str, *, is_number: bool = True) -> str | None:
    """Returns the patch for the line of a program that ends with "# here"."""
    script = tmp_path / f"train_{len(list(tmp_path.iterdir()))}.py"  # linecache reads a file once
    script.write_text(text)
    line = next(i for i, one in enumerate(text.splitlines(), 1) if one.endswith("# here"))
    found = kept_value(f"{script}:{line} main", is_number=is_number)
    return None if found is None else found.patch


LOOP = """\
total, losses = 0, []
for x in data:
    loss = loss_of(model(x))  # here
    {kept}
{later}
"""


@pytest.mark.parametrize(
    "later",
    [
        "print(total / 3, f'{total:.3f}', '%.2f' % total)",
        "history = []; history.append(total / 3); print(history)",
        "writer.add_scalar('loss', total / 3, 1)",
        "wandb.log({'loss': round(float(total), 3)})",
        "best = min(best, total); print(best)",
        "if total > 3: print('high')",
    ],
)
def test_a_sum_that_is_only_shown_is_kept_as_a_number(later: str, tmp_path: Path) -> None:
    text = LOOP.format(kept="total += loss", later=later)
    assert patch_in(tmp_path, text) == "total += loss.item()"


@pytest.mark.parametrize(
    ("kept", "later"),
    [
        ("total += loss", "print((total / 3).item())"),
        ("total += loss", "mean = total / 3; print(mean.item())"),
        ("total += loss", "history = []; history.append(total); print(history[-1].item())"),
        ("total += loss", "dist.all_reduce(total)"),
        ("total += loss", "print(torch.sqrt(total))"),
        ("total += loss", "print((total > 3).any())"),
        ("losses.append(loss)", "print(sum(losses).item())"),
        ("losses.append(loss)", "for i, one in enumerate(losses): print(one.item())"),
        ("losses.append(loss)", "for one, y in zip(losses, ys): print(one.item())"),
        ("losses.append(loss)", "print([loss.item() for loss in losses])"),
        ("losses.append(loss)", "print(sum(one.item() for one in losses))"),
    ],
)
def test_a_value_that_is_used_as_a_tensor_stays_one(kept: str, later: str, tmp_path: Path) -> None:
    patch = patch_in(tmp_path, LOOP.format(kept=kept, later=later))
    assert patch == kept.replace("loss)", "loss.detach())").replace("+= loss", "+= loss.detach()")


@pytest.mark.parametrize(
    ("kept", "later"),
    [
        ("total += loss", "accelerator.backward(total)"),
        ("total += loss", "self.manual_backward(total)"),
        ("total += loss", "scaler.scale(total).backward()"),
        ("total += loss", "torch.autograd.grad(total, parameters)"),
        ("total += loss", "mean = total / 3; mean.backward()"),
        ("total += loss", "total += penalty; total.backward()"),
        ("total += loss", "optimize(total)"),
        ("total += loss", "holder.total = total"),
        ("losses.append(loss)", "torch.autograd.backward(losses)"),
        ("losses.append(loss)", "torch.stack(losses).mean().backward()"),
        ("losses.append(loss)", "losses.append(penalty); sum(losses).backward()"),
        ("losses.append(loss)", "train_on(losses)"),
        ("state = cell(x, state); total += loss", "total.backward()"),
    ],
)
def test_a_graph_that_gradients_may_need_is_not_cut(kept: str, later: str, tmp_path: Path) -> None:
    assert patch_in(tmp_path, LOOP.format(kept=kept, later=later)) == ""


@pytest.mark.parametrize(
    "later", ["torch.cat(kept).mean().backward()", "y = torch.cat(kept); f(y, z).backward()"]
)
def test_no_backward_pass_runs_from_results_that_are_joined_first(
    later: str, tmp_path: Path
) -> None:
    text = f"kept = []\nfor x in data:\n    y = model(x)  # here\n    kept.append(y)\n{later}\n"
    assert patch_in(tmp_path, text, is_number=False) == ""


SPENT = LOOP.replace("    {kept}", "    loss.backward()\n    {kept}")


@pytest.mark.parametrize(
    ("kept", "later", "patch"),
    [
        ("losses.append(loss)", "for loss in losses: print(loss)", "losses.append(loss.item())"),
        ("losses.append(loss)", "print([float(loss) for loss in losses])",
         "losses.append(loss.item())"),
        ("total += loss", "loss = total / 3; print(loss)", "total += loss.item()"),
        ("total += loss", "report(total)", "total += loss.detach()"),
    ],
)  # fmt: skip
def test_a_backward_pass_of_each_pass_is_none_of_the_sum(
    kept: str, later: str, patch: str, tmp_path: Path
) -> None:
    assert patch_in(tmp_path, SPENT.format(kept=kept, later=later)) == patch


def test_a_returned_sum_may_be_trained_on(tmp_path: Path) -> None:
    loop = "    total = 0\n    for x in data:\n        total += loss_of(x)  # here\n"
    text = f"def loss():\n{loop}    return total\nloss().backward()\n"
    assert patch_in(tmp_path, text) == ""


def test_an_attribute_of_another_class_is_another_variable(tmp_path: Path) -> None:
    loop = "        for x in data:\n            self.total += loss_of(x)  # here\n"
    other = "    def g(self):\n        self.total.backward()\n"
    own = f"class A:\n    def f(self):\n{loop}"
    assert patch_in(tmp_path, f"{own}class B:\n{other}") == "self.total += loss_of(x).detach()"
    assert patch_in(tmp_path, own + other) == ""


STEP = "loss_of(x, h).backward(retain_graph=True)"


@pytest.mark.parametrize(
    ("lines", "patch"),
    [
        (["h = cell(x, h)", STEP], "h = h.detach()"),
        (["y, (h, c) = lstm(x, (h, c))", STEP], ""),
        (["y, h = lstm(x, h)", STEP], ""),
        (["h = cell(x, h)", "print(h[0])", STEP], ""),
        (["h = cell(x, h)", "h = h.detach()", STEP], None),
        (["h = max(h + 1, 0)", STEP], None),
        (["h = iter(h)", STEP], None),
        (["loss = loss_of(x)", "h = update(h)", STEP], None),
        (["y = first(x)", "y = second(y)", STEP], None),
        (["x = layer(x)", STEP], None),
        (["h = cell(x, h)"], None),
    ],
)
def test_a_state_that_passes_hand_on_is_detached(
    lines: list[str], patch: str | None, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("\n    ".join(["for x in data:", *lines]) + "\n")
    found = handed_value(f"{script}:2 main")
    assert (found and found.patch) == patch


def test_a_state_is_left_to_a_backward_pass_after_the_loop(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("for x in data:\n    h = cell(x, h)\nloss_of(h).backward()\n")
    found = handed_value(f"{script}:2 main")
    assert (found and found.patch) == ""


def test_the_layers_of_a_model_are_no_passes(tmp_path: Path) -> None:
    begin = "class Model(Module):\n    def forward(self, x):\n        for layer in self.layers:\n"
    for number, body in enumerate(["x = layer(x)", "x = x + layer(x)"]):
        script = tmp_path / f"model_{number}.py"
        script.write_text(f"{begin}            {body}\n        return x\n")
        assert kept_value(f"{script}:4 forward", is_number=False) is None
        assert handed_value(f"{script}:4 forward") is None


def test_a_name_that_has_another_value_where_it_is_kept_is_not_the_line_s(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "bank = []\n"
        "for x in data:\n"
        "    q, z = query(x), model(x)\n"
        "    bank.append(z)\n"
        "    z = evaluate(model)\n"
    )
    found = kept_value(f"{script}:3 <module>", is_number=False)
    assert found is not None
    assert (found.patch, found.line) == ("bank.append(z.detach().cpu())", 4)
    assert kept_value(f"{script}:5 <module>", is_number=False) is None
