"""Tests the causes of high memory that plimsoll finds in the programs of tests/programs/causes.

With the argument "fault" a program has a fault. With "fine" it has no fault.
"""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from plimsoll.base.units import GiB
from plimsoll.cli.app import app
from plimsoll.explanation.explain import explain
from plimsoll.prediction.fitting.within import fit_within
from plimsoll.prediction.predict import predict
from plimsoll.recordings.causes import recognisers
from plimsoll.recordings.origin import Origin, origin_of
from tests.apart import ROOT
from tests.simulated import PROGRAMS, output_of, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.recordings.causes.cause import Cause, Facts
    from plimsoll.recordings.events import Frame

pytest.importorskip("torch")

CAUSES = PROGRAMS / "causes"
NAMES = {path.stem: path.stem for path in CAUSES.glob("*.py")} | {
    "collected_results": "kept_over_passes",
    "evaluation_in_training": "unused_activations",
    "graphs_kept_in_training": "kept_over_passes",
    "leaking_validation": "kept_over_passes",
    "ranks_without_a_card": "ranks_on_one_card",
    "tensors_kept_in_training": "kept_over_passes",
}
TWO_CARDS = ("data_parallel",)
TWO_RANKS = ("ranks_on_one_card", "ranks_without_a_card")
IN_RECORDINGS = ("collected_results", "loaded_checkpoint", "unused_activations", "varied_sizes")
TRIED = ("autocast_cache", "collected_results", "graphs_kept_in_training", "kept_over_passes",
         "leaking_validation", "loaded_checkpoint",
         "search_of_plans", "unused_activations", *TWO_RANKS)  # fmt: skip
QUICKLY_TRIED = "unused_activations"
SLOW = ("loaded_checkpoint", "search_of_plans", "whole_model_checkpoint", *TWO_RANKS)


@pytest.mark.parametrize(
    "program",
    [pytest.param(name, marks=pytest.mark.long if name in SLOW else ()) for name in sorted(NAMES)],
)
def test_a_fault_is_named_and_what_looks_like_it_is_not(program: str) -> None:
    script, gpus = CAUSES / f"{program}.py", 2 if program in TWO_CARDS else None
    ranks = 2 if program in TWO_RANKS else None
    fault = predict(script, ["fault"], gpus=gpus, nproc_per_node=ranks).causes
    assert fault, "no cause was found"
    assert fault[0].name == NAMES[program]
    assert fault[0].bytes > 0
    fine = predict(script, ["fine"], gpus=gpus, nproc_per_node=ranks).causes
    assert [cause.name for cause in fine] == []


@pytest.mark.parametrize(
    ("program", "word", "begin"),
    [
        ("kept_over_passes", "fault", "the graph that "),
        ("tensors_kept_in_training", "fault", "/tensors_kept_in_training.py:17 keeps "),
        ("tensors_kept_in_training", "detached", "/tensors_kept_in_training.py:13 keeps "),
    ],
)
def test_a_graph_is_named_only_where_results_with_a_grad_fn_are_kept(
    program: str, word: str, begin: str
) -> None:
    sentence = predict(CAUSES / f"{program}.py", [word]).causes[0].sentence
    assert begin in sentence
    if program == "kept_over_passes":
        # Line 26 of the program calls `batch_loss`. Line 16, within `batch_loss`, makes the graph.
        assert "kept_over_passes.py:26 makes, mostly at " in sentence
        assert "kept_over_passes.py:16, is kept" in sentence
    assert sentence.count("graph") == begin.count("graph")


def test_a_recording_on_a_gpu_only_suspects_a_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = tmp_path / "run.plim"
    simulate(CAUSES / "kept_over_passes.py", "--record", str(recording), arguments=["fault"])
    found = explain(recording, search_events=0)
    assert found.causes[0].sentence.startswith("the graph that ")

    def of_a_gpu(frames: Sequence[Frame]) -> Origin | None:
        origin = origin_of(frames)
        return None if origin is None else Origin(origin.phase, origin.keeps_graph)

    monkeypatch.setattr("plimsoll.recordings.causes.cause.origin_of", of_a_gpu)
    found = explain(recording, search_events=0)
    assert found.causes[0].sentence.startswith("perhaps the graph that ")


@pytest.mark.parametrize(
    ("program", "never_runs", "patch"),
    [
        ("leaking_validation", True, "with torch.no_grad():"),
        ("graphs_kept_in_training", False, "losses.append(loss.item())"),
    ],
)
def test_no_grad_is_advised_only_where_no_backward_pass_uses_the_graph(
    program: str, never_runs: bool, patch: str
) -> None:
    cause = predict(CAUSES / f"{program}.py", ["fault"]).causes[0]
    assert ("for a backward pass that never runs" in cause.sentence) == never_runs
    assert cause.patch.endswith(patch)


@pytest.mark.parametrize("batches", ["12", "400"])
def test_a_recorded_validation_names_its_leak_whether_or_not_it_fills_the_card(
    batches: str, tmp_path: Path
) -> None:
    recording = tmp_path / "run.plim"
    simulate(
        CAUSES / "leaking_validation.py",
        *("--record", str(recording)),
        arguments=["fault", batches],
        gpu="T4",
    )
    found = explain(str(recording))
    assert bool(found.out_of_memory) == (batches != "12")
    (cause, *_), first = found.causes, found.leaks[0]
    assert (cause.name, cause.patch) == ("kept_over_passes", "with torch.no_grad():")
    assert first.inside_step == 10
    assert "leaking_validation.py:27 validate" in first.what
    leak = found.advice[0]
    assert leak.kind == "leak"
    if found.out_of_memory:
        assert leak.serves_failed_requests
        assert "(serves the request that failed, tried)" in str(found)
    else:
        # Each validation keeps 12 graphs. Without the leak, only two graphs are live at a time.
        assert leak.saves_bytes >= 10 * cause.growth_bytes


def test_of_two_loops_that_keep_memory_the_one_that_keeps_more_is_named(tmp_path: Path) -> None:
    keeps = "kept.append(torch.zeros(2 << 20, device='cuda'))"
    script = tmp_path / "both.py"
    text = (CAUSES / "leaking_validation.py").read_text()
    text = text.replace("optimizer.step()\n", f"optimizer.step()\n        {keeps}\n")
    script.write_text(text.replace("for _ in range(2):", "kept = []\nfor _ in range(2):"))
    assert predict(script, ["fault"]).causes[0].patch == "with torch.no_grad():"
    assert predict(script, ["fine"]).causes[0].patch != "with torch.no_grad():"


def test_frozen_parameters_need_no_no_grad(tmp_path: Path) -> None:
    script = tmp_path / "frozen.py"
    text = (CAUSES / "unused_activations.py").read_text()
    begin = text.index("optimizer = ")
    frozen = text[:begin] + text[text.index("with torch.set_grad_enabled") :]
    script.write_text(frozen)
    assert [cause.name for cause in predict(script, ["fault"]).causes] == ["unused_activations"]
    script.write_text(frozen.replace(".cuda()", ".cuda().requires_grad_(False)"))
    assert predict(script, ["fault"]).causes == []


def test_without_any_backward_pass_no_grad_is_advised_on_a_condition(tmp_path: Path) -> None:
    script = tmp_path / "sums.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()\n"
        "total = 0\n"
        "for _ in range(20):\n"
        "    total += model(torch.randn(1024, 1024, device='cuda')).square().mean()\n"
    )
    cause = predict(script).causes[0]
    assert cause.change == "if none follows, put what runs there under torch.no_grad()"
    assert cause.patch == ""
    script.write_text(script.read_text() + "total.backward()\n")
    assert not [one for one in predict(script).causes if "no_grad" in one.change]


@pytest.mark.parametrize(
    "program",
    [pytest.param(name, marks=() if name == QUICKLY_TRIED else pytest.mark.long) for name in TRIED],
)
def test_the_change_is_tried_and_saves_memory(program: str) -> None:
    ranks = ["--nproc-per-node", "2"] if program in TWO_RANKS else []
    words = ["predict", "--advise", *ranks, str(CAUSES / f"{program}.py"), "--", "fault"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    verdict, why, follow = done.stdout.splitlines()[:3]
    assert " fits on H100: " in verdict
    assert why.startswith("Why: ")
    assert follow.startswith("Try: ")
    assert re.search(r" \(saves (at least )?\d+\.\d\d [MG]iB, tried\)\.$", why)


@pytest.mark.parametrize("program", IN_RECORDINGS)
def test_a_recording_says_the_cause_too(program: str, tmp_path: Path) -> None:
    recording = tmp_path / "run.plim"
    simulate(CAUSES / f"{program}.py", "--record", str(recording), arguments=["fault"])
    found = explain(str(recording), search_events=0)
    assert [cause.name for cause in found.causes][:1] == [NAMES[program]]
    assert str(found).splitlines()[1].startswith("Why: ")


@pytest.mark.long
def test_fit_takes_the_change_of_a_cause_also_for_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "package").mkdir()
    text = (CAUSES / "unused_activations.py").read_text()
    (tmp_path / "package" / "validates.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    plan = fit_within("package.validates", ["fault"], module=True, within="950MiB")
    assert plan.fits
    assert plan.patch.startswith("--- package/validates.py\n")
    assert "with torch.no_grad():" in plan.patch
    assert plan.command.endswith(" -m package.validates fault")
    assert (tmp_path / "package" / "validates.py").read_text() == text


@pytest.mark.long
def test_fit_counts_ranks_on_one_card_and_gives_each_its_own() -> None:
    script = CAUSES / "ranks_on_one_card.py"
    plan = fit_within(script, ["fault"], nproc_per_node=2, within="2.2GiB")
    assert plan.fits
    assert plan.as_it_is_bytes > 2.2 * GiB
    assert 'torch.load(path, map_location="cpu")' in plan.patch


def test_memory_outside_pytorch_is_a_cause_where_the_card_alone_had_room(tmp_path: Path) -> None:
    script = tmp_path / "takes.py"
    script.write_text(
        "import sys, torch\ntorch.empty(int(sys.argv[1]) << 30, dtype=torch.uint8, device='cuda')\n"
    )
    beside_others = predict(script, ["8"], gpu="T4", used="10GiB")
    assert beside_others.causes[0].name == "outside_pytorch"
    assert "10.00 GiB by other programs" in str(beside_others).splitlines()[1]
    too_much = predict(script, ["20"], gpu="T4", used="2GiB")
    fits = predict(script, ["2"], gpu="T4", used="10GiB")
    assert [each.name for found in (too_much, fits) for each in found.causes] == []


def test_a_recogniser_that_fails_ends_no_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: Facts) -> Cause | None:
        raise ZeroDivisionError("by nothing")

    recording = ROOT / "examples" / "recordings" / "gpt2_adamw.pickle.gz"
    known = [cause.name for cause in explain(recording, search_events=0).causes]
    assert known
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(recognisers, "RECOGNISERS", (fails, *recognisers.RECOGNISERS))
    assert [cause.name for cause in explain(recording, search_events=0).causes] == known
    (line,) = capsys.readouterr().err.splitlines()
    says = "plimsoll: the cause fails could not be looked for: ZeroDivisionError: by nothing"
    assert line == says


@pytest.mark.long
def test_attention_counts_the_scores_that_are_there_at_the_peak(tmp_path: Path) -> None:
    script = tmp_path / "attends.py"
    script.write_text(
        (CAUSES / "math_attention.py").read_text()
        + "later = torch.empty(int(sys.argv[1]) << 20, dtype=torch.uint8, device='cuda')\n"
    )
    (cause,) = predict(script, ["1", "fault"]).causes
    at_peak = 8 * 2048 * 2048 * 2
    # `at_peak` counts the scores in bfloat16. `cause.bytes` is larger, because it also
    # includes copies of the scores in float32.
    assert cause.bytes in range(at_peak, 8 * at_peak)
    assert "at the peak" in cause.sentence
    # the peak comes later, after the scores are freed
    assert predict(script, ["4096", "fault"]).causes == []


def test_page_locked_memory_follows_the_setting_that_is_advised() -> None:
    (cause,) = predict(CAUSES / "page_locked.py", ["fault"]).causes
    assert cause.patch == "PYTORCH_CUDA_ALLOC_CONF=pinned_max_round_threshold_mb:64"
    conf = cause.patch.partition("=")[2]
    assert predict(CAUSES / "page_locked.py", ["fault"], conf=conf).causes == []


@pytest.mark.parametrize(
    ("conf", "kept_mib", "left_mib"),
    [
        ("", 512, 512),
        ("pinned_max_round_threshold_mb:64", 260, 260),
        ("pinned_max_round_threshold_mb:65", 512, 512),
        ("pinned_max_cached_size_mb:64", 260, 0),
    ],
)
def test_settings_say_what_page_locked_memory_is_rounded_and_kept(
    conf: str, kept_mib: int, left_mib: int
) -> None:
    program = f"""
        import torch
        torch.cuda.memory._set_allocator_settings({conf!r})
        torch.cuda.init()
        kept = [torch.empty(65 << 20, dtype=torch.uint8).pin_memory() for _ in range(4)]
        now = lambda: torch.cuda.host_memory_stats()["allocated_bytes.current"] >> 20
        first = now()
        del kept
        print(first, now())
    """
    assert output_of(dedent(program)).split() == [str(kept_mib), str(left_mib)]
