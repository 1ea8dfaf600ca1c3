"""Tests the memory-saving changes of scripts: the new text, and scripts that cannot be changed."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.base.units import GiB, MiB
from plimsoll.prediction.fitting.attempts import changed
from plimsoll.prediction.fitting.changes.accumulation import trainer_in_parts
from plimsoll.prediction.fitting.changes.attention import attention_changes
from plimsoll.prediction.fitting.changes.batch import batch_changes
from plimsoll.prediction.fitting.changes.compiled import (
    compiled_change,
    first_budgets,
    next_budgets,
)
from plimsoll.prediction.fitting.changes.early_zero_grad import gradient_changes
from plimsoll.prediction.fitting.changes.loss import loss_changes
from plimsoll.prediction.fitting.changes.of_causes import cause_changes
from plimsoll.prediction.fitting.changes.offloading import offloading_change
from plimsoll.prediction.fitting.changes.precision import precision_changes
from plimsoll.prediction.fitting.changes.recomputing import ranges, recomputing_change
from plimsoll.prediction.fitting.changes.stepping import optimizer_changes
from plimsoll.prediction.fitting.changes.trainer import trainer_changes
from plimsoll.prediction.fitting.script_text import CannotChangeError, ScriptText
from plimsoll.prediction.survey import (
    ArgumentUse,
    LossUse,
    ModelCall,
    ModelUse,
    OptimizerUse,
    Place,
    Recomputation,
    Survey,
)
from plimsoll.recordings.causes.cause import Cause

if TYPE_CHECKING:
    from plimsoll.prediction.fitting.changes.change import Change

SCRIPT = """\
import torch


def main():
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(4):
        x, y = batch()
        logits = model(x)
        loss = torch.nn.functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())


main()
"""


def line_of(text: str, part: str) -> int:
    return next(number for number, line in enumerate(text.split("\n"), 1) if part in line)


def survey(
    text: str = SCRIPT,
    call: str = "model(x)",
    backward: str = ".backward()",
    function: str = "main",
    tensors: tuple[str, ...] = ("x", "y"),
    mappings: tuple[str, ...] = (),
    optimizer: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
) -> Survey:
    """Makes a survey, which says what plimsoll observed in a run of the script."""
    made = Place(line_of(text, "torch.optim."), "main")
    use = {
        "kind": "torch.optim.adamw.AdamW", "made": made,
        "stepped": Place(line_of(text, ".step("), function), "settings": {},
        "parameter_bytes": GiB, "gradient_bytes": GiB, "state_bytes": 2 * GiB,
        "is_foreach": True, "keeps_gradients": True, **(optimizer or {}),
    }  # fmt: skip
    seen = {
        "kind": "Net", "names": [("model", "main", "")],
        "calls": [ModelCall(Place(line_of(text, call), function), [*tensors], [*mappings])],
        "batch": 8, "is_transformers": False, "attention": None, "has_batch_statistics": False,
        "has_dropout": False, "autocast": None, "parameter_types": {"float32": GiB},
        **(model or {}),
    }  # fmt: skip
    losses = [LossUse(Place(line_of(text, "cross_entropy("), function), GiB, 4096, 4)] * (
        "cross_entropy(" in text
    )
    return Survey(
        optimizers=[OptimizerUse(**use)],
        models=[ModelUse(**seen)],
        losses=losses,
        backwards=[Place(line_of(text, backward), function)],
    )


def made(changes: list[Change], text: str = SCRIPT) -> str:
    new = str(changed(ScriptText.of(text), tuple(changes)))
    ast.parse(new)
    return new


def named(changes: Any, part: str) -> Change:
    found: Change = next(change for change in changes if part in change.name)
    return found


def batches(seen: Survey, text: str = SCRIPT) -> list[Change]:
    return list(batch_changes(seen, ScriptText.of(text)))


class TestOptimizer:
    """Tests of changes to the optimizer."""

    def test_the_fused_one_replaces_lists(self) -> None:
        new = made([named(optimizer_changes(survey()), "fused")])
        assert "torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)" in new

    def test_a_setting_that_contradicts_goes(self) -> None:
        text = SCRIPT.replace("lr=1e-3", "foreach=True, lr=1e-3")
        new = made([named(optimizer_changes(survey(text)), "fused")], text)
        assert "AdamW(model.parameters(), lr=1e-3, fused=True)" in new

    def test_those_that_have_no_fused_kernels_step_one_by_one(self) -> None:
        text = SCRIPT.replace("AdamW", "RMSprop")
        seen = survey(text, optimizer={"kind": "torch.optim.rmsprop.RMSprop"})
        new = made([named(optimizer_changes(seen), "foreach=False")], text)
        assert "RMSprop(model.parameters(), lr=1e-3, foreach=False)" in new

    def test_state_in_the_hosts_memory_needs_the_elastic_allocator(self) -> None:
        change = named(optimizer_changes(survey()), "host's memory")
        assert change.allocator == "elastic"
        assert "\n    plimsoll.place_optimizer(optimizer)\n    for" in made([change])

    def test_another_optimizer_says_that_results_differ(self) -> None:
        change = named(optimizer_changes(survey()), "Adafactor")
        assert not change.keeps_results
        assert "torch.optim.Adafactor(model.parameters(), lr=1e-3)" in made([change])

    def test_an_optimizer_that_a_library_makes_is_left_alone(self) -> None:
        assert list(optimizer_changes(survey(optimizer={"made": None}))) == []

    def test_one_that_is_made_under_another_name_cannot_be_changed(self) -> None:
        text = SCRIPT.replace("torch.optim.AdamW(", "make(torch.optim.AdamW, ")
        with pytest.raises(CannotChangeError, match="otherwise than by calling AdamW"):
            made([named(optimizer_changes(survey(text)), "fused")], text)


class TestGradients:
    """Tests of changes that free gradients earlier."""

    def test_they_are_freed_after_the_step(self) -> None:
        (change,) = gradient_changes(survey())
        new = made([change])
        assert "optimizer.step()\n        optimizer.zero_grad(set_to_none=True)\n" in new

    def test_after_a_scalers_step_and_its_update(self) -> None:
        text = SCRIPT.replace("optimizer.step()", "scaler.step(optimizer)\n        scaler.update()")
        new = made([*gradient_changes(survey(text))], text)
        assert "scaler.update()\n        optimizer.zero_grad(set_to_none=True)\n" in new

    def test_those_that_are_freed_already_are_left_alone(self) -> None:
        assert not list(gradient_changes(survey(optimizer={"keeps_gradients": False})))


class TestLoss:
    """Tests of computing the loss in chunks."""

    def test_the_call_is_replaced(self) -> None:
        new = made([*loss_changes(survey())])
        assert "loss = plimsoll.cross_entropy(logits, y)" in new

    def test_a_library_that_calls_it_gets_the_other_one(self) -> None:
        text = SCRIPT.replace("torch.nn.functional.cross_entropy(logits, y)", "logits.loss")
        seen = survey()
        seen.losses[:] = [LossUse(Place(line_of(text, "model(x)"), "main"), GiB, 4096, 4)]
        new = made([*loss_changes(seen)], text)
        assert new.startswith(
            "import torch\nimport plimsoll\n"
            "torch.nn.functional.cross_entropy = plimsoll.cross_entropy\n"
        )

    def test_small_logits_are_left_alone(self) -> None:
        seen = survey()
        seen.losses[:] = [LossUse(None, MiB, 4096, 4)]
        assert not list(loss_changes(seen))


class TestBatch:
    """Tests of splitting the batch."""

    def parts(self, text: str = SCRIPT, **seen: Any) -> str:
        return made([named(batches(survey(text, **seen), text), "2 parts")], text)

    def test_the_passes_run_for_each_part_and_gradients_are_zeroed_once(self) -> None:
        assert """\
        x, y = batch()
        optimizer.zero_grad()
        losses = []
        for x, y in plimsoll.split_batch(2, x, y):
            logits = model(x)
            loss = torch.nn.functional.cross_entropy(logits, y)
            (loss / 2).backward()
            losses.append(loss.detach())
        loss = torch.stack(losses).mean()
        optimizer.step()
""" in self.parts()

    def test_a_scaled_loss_is_divided_and_named(self) -> None:
        text = SCRIPT.replace("loss.backward()", "scaler.scale(loss).backward()")
        new = self.parts(text)
        assert "(scaler.scale(loss) / 2).backward()" in new
        assert "losses.append(loss.detach())" in new

    def test_an_accelerators_backward_has_the_loss_as_its_argument(self) -> None:
        text = SCRIPT.replace("loss.backward()", "accelerator.backward(loss)")
        assert "accelerator.backward((loss / 2))" in self.parts(
            text, backward="accelerator.backward"
        )

    def test_a_mapping_is_split_as_a_whole(self) -> None:
        text = SCRIPT.replace("x, y = batch()", "b = batch()").replace("model(x)", "model(**b)")
        text = text.replace("(logits, y)", '(logits, b["y"])')
        new = self.parts(text, call="model(**b)", tensors=(), mappings=("b",))
        assert "for b in plimsoll.split_batch(2, b):" in new

    def test_a_batch_that_is_used_later_is_there_again(self) -> None:
        text = SCRIPT.replace("print(loss.item())", "print(x.shape)")
        new = self.parts(text)
        assert "        whole_x = x\n" in new
        assert "        x = whole_x\n" in new
        assert "losses" not in new

    @pytest.mark.parametrize(
        ("before", "after", "why"),
        [
            ("print(loss.item())", "print(logits.mean())", "logits is used after"),
            ("(logits, y)", '(logits, y, reduction="sum")', "the loss is a sum"),
            ("loss.backward()", "loss.backward(); optimizer.step()", "several statements"),
        ],
    )
    def test_what_would_give_other_results_cannot_be_changed(
        self, before: str, after: str, why: str
    ) -> None:
        with pytest.raises(CannotChangeError, match=why):
            self.parts(SCRIPT.replace(before, after))

    def test_options_of_the_script_are_set_instead(self) -> None:
        seen = survey()
        seen.arguments[:] = [
            ArgumentUse(["-b", "--batch-size"], 8), ArgumentUse(["--grad-accum"], 2)
        ]  # fmt: skip
        change = named(batches(seen), "4 parts")
        assert change.arguments == (("--batch-size", "2"), ("--grad-accum", "8"))
        assert made([change]) == SCRIPT

    def test_the_head_of_a_language_model_is_in_chunks_with_its_loss(self) -> None:
        assert [change.short for change in loss_changes(survey())] == ["loss in chunks"]
        _, change = loss_changes(survey(model={"kind": "LlamaForCausalLM"}))
        assert "    plimsoll.fuse_loss(model)\n" in made([change])

    def test_a_trainer_is_told_by_its_arguments(self) -> None:
        seen = survey(optimizer={"made": None, "stepped": None}, model={"autocast": None})
        changes = [each for each in trainer_changes(seen, GiB) if "bitsandbytes" not in each.name]
        text = "arguments = TrainingArguments(folder, bf16=False)\n"
        assert [str(change.edit(ScriptText.of(text))) for change in changes] == [
            'arguments = TrainingArguments(folder, bf16=False, optim="adamw_torch_fused")\n',
            'arguments = TrainingArguments(folder, bf16=False, optim="adafactor")\n',
            "arguments = TrainingArguments(folder, bf16=True)\n",
        ]
        assert [change.keeps_results for change in changes] == [True, False, False]
        with pytest.raises(CannotChangeError, match="makes no arguments of a Trainer"):
            changes[0].edit(ScriptText.of("train()\n"))
        assert not list(trainer_changes(survey(), GiB))

    def test_one_call_that_makes_and_steps_an_optimizer_is_a_librarys(self) -> None:
        place = Place(4, "main")
        seen = survey(optimizer={"made": place, "stepped": place}, model={"autocast": None})
        assert not list(optimizer_changes(seen))
        assert any(change.name.startswith("use the fused") for change in trainer_changes(seen, GiB))

    def test_a_trainers_batches_are_smaller_and_more(self) -> None:
        text = "args = TrainingArguments('out', per_device_train_batch_size=8, bf16=True)\n"
        assert str(trainer_in_parts(ScriptText.of(text), 2)) == (
            "args = TrainingArguments('out', per_device_train_batch_size=4, bf16=True, "
            "gradient_accumulation_steps=2)\n"
        )
        with pytest.raises(CannotChangeError, match="8 does not divide into 3 parts"):
            trainer_in_parts(ScriptText.of(text), 3)
        of_option = text.replace("=8", "=args.batch").replace("bf16=True", "bf16=True, **more")
        assert "per_device_train_batch_size=args.batch // 2, " in str(
            trainer_in_parts(ScriptText.of(of_option), 2)
        )
        both = text.replace("=8", "=a + b").replace("bf16", "gradient_accumulation_steps=n, bf16")
        assert str(trainer_in_parts(ScriptText.of(both), 2)) == (
            "args = TrainingArguments('out', per_device_train_batch_size=(a + b) // 2, "
            "gradient_accumulation_steps=n * 2, bf16=True)\n"
        )

    def test_batch_statistics_are_a_caveat(self) -> None:
        seen = survey(model={"has_batch_statistics": True})
        assert not any(change.keeps_results for change in batches(seen))

    @pytest.mark.parametrize(("batch", "count"), [(8, 3), (6, 1), (7, 0), (None, 0)])
    def test_parts_divide_the_batch(self, batch: int | None, count: int) -> None:
        assert len(list(batches(survey(model={"batch": batch})))) == count


class TestModel:
    """Tests of changes to the model."""

    def plan(self, *modules: str) -> Change:
        return recomputing_change(survey(), Recomputation([*modules], GiB, 0.1), GiB)

    def test_modules_are_recomputed_after_the_model_is_made(self) -> None:
        new = made([self.plan("blocks.0", "blocks.1", "head")])
        assert 'model = Net().cuda()\n    plimsoll.recompute(model, "head", "blocks.0-1")\n' in new

    def test_after_the_last_value_that_the_variable_gets(self) -> None:
        text = SCRIPT.replace("Net().cuda()", "Net()\n    model = model.cuda()")
        assert "model = model.cuda()\n    plimsoll.recompute(model" in made([self.plan("a")], text)

    def test_an_attribute_is_a_variable_too(self) -> None:
        text = SCRIPT.replace("model", "state.model")
        seen = survey(text, call="state.model(x)", model={"names": [("state.model", "main", "")]})
        change = recomputing_change(seen, Recomputation(["a"], GiB, 0.1), GiB)
        assert 'plimsoll.recompute(state.model, "a")' in made([change], text)

    def test_a_model_without_a_variable_cannot_be_changed(self) -> None:
        seen = survey(model={"names": []})
        change = recomputing_change(seen, Recomputation(["a"], GiB, 0.1), GiB)
        with pytest.raises(CannotChangeError, match="no variable of the script holds the model"):
            made([change])

    def test_attention_in_one_kernel_for_transformers_that_compute_it_in_steps(self) -> None:
        assert not list(attention_changes(survey(), GiB))
        (change,) = attention_changes(survey(model={"attention": "eager"}), GiB)
        assert 'model.set_attn_implementation("sdpa")' in made([change])

    def test_compiling_takes_a_budget(self) -> None:
        whole = compiled_change(survey(), GiB, 1.0)
        assert whole.keeps_results
        assert "    model.compile()\n" in made([whole])
        assert "activation_memory_budget" not in made([whole])
        new = made([compiled_change(survey(), GiB, 0.5)])
        assert "torch._functorch.config.activation_memory_budget = 0.5\n" in new
        assert "import torch._functorch.config\n" in new

    def test_a_model_that_drops_out_is_compiled_without_a_budget(self) -> None:
        random = survey(model={"has_dropout": True})
        assert first_budgets(random) == (1.0,)
        assert 0.0 in first_budgets(survey())
        assert not compiled_change(random, GiB, 1.0).keeps_results

    def test_budgets_go_on_beside_what_takes_the_least_or_above_what_is_enough(self) -> None:
        peaks = {1.0: 900, 0.5: 700, 0.25: 400, 0.1: 500, 0.0: 800}
        assert next_budgets(peaks, 300) == [0.175, 0.375]
        assert next_budgets(peaks, 450) == [0.375]
        assert next_budgets(peaks, 1000) == []
        assert next_budgets({0.1: 2, 0.14: 1, 0.18: 3}, 0) == []


class TestPasses:
    """Tests of changes around the forward and the backward pass."""

    def test_autocast_is_around_the_forward_pass_alone(self) -> None:
        (change, _) = precision_changes(survey(), GiB)
        new = made([change])
        assert 'with torch.autocast("cuda", dtype=torch.bfloat16):\n            logits' in new
        assert "\n        loss.backward()" in new

    def test_offload_is_around_both(self) -> None:
        new = made([offloading_change(survey(), 6 * GiB, GiB)])
        assert 'with plimsoll.offload(budget="6144MiB"):\n            logits = model(x)' in new
        assert "\n            loss.backward()\n        optimizer.step()" in new

    def test_changes_of_the_same_lines_agree(self) -> None:
        seen = survey()
        changes = [
            named(batches(seen), "2 parts"), offloading_change(seen, GiB, GiB),
            *gradient_changes(seen), *loss_changes(seen), named(optimizer_changes(seen), "fused"),
            recomputing_change(seen, Recomputation(["a"], GiB, 0.1), GiB),
            next(precision_changes(seen, GiB)),
        ]  # fmt: skip
        new = made(changes)
        assert new.count("import plimsoll\n") == 1
        assert "(loss / 2).backward()" in new
        assert made(changes[::-1]) == new

    def test_a_backward_in_another_function_is_left_alone(self) -> None:
        seen = survey()
        seen.backwards[:] = [Place(3, "other")]
        with pytest.raises(CannotChangeError, match="in one function, and backward"):
            made([offloading_change(seen, GiB, GiB)])


def test_lines_of_an_if_and_its_else_are_put_under_one_no_grad() -> None:
    text = """\
import torch
if small:
    x = batch()
    y = model(x)
else:
    y = large(batch())
print(y)
"""
    cause = Cause("unused_activations", "", "", GiB, "a.py:4-6 f", "with torch.no_grad():")
    (change,) = cause_changes(Survey(causes=[cause]))
    lines = str(change.edit(ScriptText.of(text))).splitlines()
    assert lines[1:3] == ["with torch.no_grad():", "    if small:"]
    assert lines[-2:] == ["        y = large(batch())", "print(y)"]


def test_names_of_many_modules_become_ranges() -> None:
    names = ["a.0", "a.1", "a.2", "a.5", "b", "a.0.c", "a.1.c", "0"]
    assert ranges(names) == ["b", "a.0-2", "a.5", "a.0-1.c", "0"]
