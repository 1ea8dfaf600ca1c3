"""Tests the advice about a script. Prepared results replace the runs of the changed script."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll import InputError
from plimsoll.base.units import GiB, MiB, parse_size
from plimsoll.explanation import script_changes
from plimsoll.explanation.explain import explain
from plimsoll.explanation.explanation import Explanation
from plimsoll.explanation.script_changes import halving_change
from plimsoll.prediction.fitting.attempts import Attempt
from plimsoll.prediction.survey import AllocatorUse, Recomputation
from tests.unit.test_changes import SCRIPT, survey
from tests.unit.test_explanation import fail, nine_blocks, recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from plimsoll import Allocator
    from plimsoll.explanation.parts import Advice
    from plimsoll.prediction.fitting.attempts import Changes
    from plimsoll.prediction.fitting.script_text import ScriptText
    from plimsoll.recordings.recording import Recording

    Explained = Callable[..., Explanation]

pytest.importorskip("torch")

MODEL = {"recomputations": [Recomputation(["blocks.0"], 100 * MiB, 0.1)]}
AS_IT_IS = {"allocated": "900MiB", "reserved": "920MiB", "seconds": 1.0, "shared": 0, "fits": True}


class Runs:
    """Replaces runs of the script by prepared results.

    `said` maps a part of a change's name to the result of a run with that change. A change without
    a key in `said` gives the result of the unchanged script.
    """

    at_a_time = 2
    said: dict[str, dict[str, Any]]
    together: list[int]

    def __init__(self, _: object, __: object, script: ScriptText, ___: int) -> None:
        self.script = script
        self.count = 0

    def run(self, sets: Sequence[Changes]) -> list[Attempt]:
        self.together.append(len(sets))
        return [self._attempt(changes) for changes in sets]

    def _attempt(self, changes: Changes) -> Attempt:
        self.count += 1
        name = changes[0].name if changes else "as it is"
        base = {**AS_IT_IS, **self.said.get("as it is", {})}
        said = {**base, **next((self.said[key] for key in self.said if key in name), {})}
        if "failure" in said:
            return Attempt(changes, None, None, said["failure"])
        allocated, reserved = (parse_size(said[key]) if said[key] else 0
                               for key in ("allocated", "reserved"))  # fmt: skip
        shared = SimpleNamespace(
            peak_bytes=said["shared"],
            peak_allocated_bytes=said["shared"],
            peak_dedicated_bytes=reserved,
        )
        prediction: Any = SimpleNamespace(
            gpu="H100", peak_allocated_bytes=allocated, peak_reserved_bytes=reserved,
            step_seconds=said["seconds"], shared=shared if said["shared"] else None,
        )  # fmt: skip
        use = AllocatorUse("native", "", allocated, reserved, said["fits"])
        return Attempt(changes, prediction, replace(survey(model=MODEL), allocators=[use]))


@pytest.fixture
def explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Explained:
    """Returns a function that explains a script's recording.

    Its arguments include the results that runs of changed scripts should have.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)

    def run(
        said: dict[str, dict[str, Any]] | None = None,
        recording: Recording | None = None,
        **options: Any,
    ) -> Explanation:
        monkeypatch.setattr(Runs, "said", said or {}, raising=False)
        monkeypatch.setattr(Runs, "together", [], raising=False)
        monkeypatch.setattr(script_changes, "Attempts", Runs)
        return explain(recording or recorded(nine_blocks), script="train.py", **options)

    return run


def of_script(found: Explanation) -> list[Advice]:
    return [one for one in found.advice if one.kind == "script"]


def test_that_the_script_is_another_program_is_said_first(explained: Explained) -> None:
    found = explained({"as it is": {"allocated": "300MiB", "reserved": "320MiB"}})
    assert found.script is not None
    assert not found.script.seems_recorded
    first = str(found).splitlines()[0]
    assert first == (
        "train.py does not seem to be the program that was recorded: with these arguments it "
        "allocates 300.00 MiB at its peak, on a simulated H100, and the recorded one 900.00 MiB."
    )
    assert first in found._repr_html_()


@pytest.mark.parametrize("advice", [True, False])
def test_what_was_tried_with_the_script_is_said_to_be_tried(
    explained: Explained, advice: bool
) -> None:
    text = str(explained(advice=advice))
    # plimsoll assumes that the script is the recorded program.
    assert text.startswith("At its peak the program reserves ")
    assert "Not tried" not in text
    assert ("by replaying this recording" in text) == advice
    tried = text.partition("Changes to train.py, each tried on a simulated H100 (8 runs)")[2]
    assert "unchanged, the script reserves 920.00 MiB at its peak" in tried
    assert "nothing that was tried would save 2% or more" in tried


def test_it_runs_eight_times_at_most_and_as_many_at_a_time_as_there_is_room_for(
    explained: Explained,
) -> None:
    found = explained(arguments=["--batch", "8"], vary="--batch", advice=False)
    assert found.script is not None
    assert found.script.runs == sum(Runs.together) == 8
    assert Runs.together == [1, 2, 2, 2, 1]


def test_changes_stand_apart_from_replays_each_with_the_lines_that_it_adds(
    explained: Explained,
) -> None:
    found = explained({"recompute": {"reserved": "500MiB"}, "fused": {"reserved": "600MiB"}})
    answer, _, rest = str(found).partition("\n\n")
    assert answer.endswith("\nTry: plimsoll fit train.py --gpu H100 --apply changed.py")
    replayed, _, changes = rest.partition("\nChanges to train.py")
    assert "recompute" not in replayed
    assert changes.splitlines()[2:8] == [
        "  1. recompute 1 module: blocks.0: saves 420.00 MiB",
        "     import plimsoll",
        '     plimsoll.recompute(model, "blocks.0")',
        "     500.00 MiB reserved",
        "  2. use the fused AdamW: saves 320.00 MiB",
        "     optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)",
    ]


def test_what_costs_less_comes_before_what_saves_more(explained: Explained) -> None:
    found = explained(
        {
            "Adafactor": {"reserved": "100MiB", "seconds": 0.5},
            "host's memory": {"reserved": "200MiB", "shared": 300 * MiB},
            "recompute": {"reserved": "300MiB", "seconds": 1.3},
            "in 2 parts": {"reserved": "350MiB", "seconds": None},
            "gradients right": {"reserved": "400MiB", "seconds": 0.9},
            "fused": {"reserved": "500MiB"},
        },
        advice=False,
    )
    assert [(one.what.split()[0], one.cost) for one in of_script(found)] == [
        ("free", "nothing"),
        ("use", "nothing"),
        ("recompute", "time"),
        ("run", "time"),
        ("keep", "bus"),
        ("use", "results"),
    ]
    text = str(found)
    assert "300.00 MiB reserved; 1.30 times the step\n" in text
    assert "results differ: it is another optimizer" in text
    assert "needs plimsoll run --allocator elastic" in text


def test_what_cannot_be_changed_is_a_note(explained: Explained) -> None:
    found = explained({"fused": {"failure": "the script fails: oh"}}, advice=False)
    assert "not possible: use the fused AdamW: the script fails: oh" in found.notes


def test_half_of_the_batch_is_an_argument_to_copy(explained: Explained) -> None:
    found = explained(
        {"halve": {"reserved": "500MiB"}},
        arguments=["--batch", "9"], vary="--batch", advice=False,
    )  # fmt: skip
    (halved,) = of_script(found)
    assert (halved.what, halved.how, halved.cost) == ("halve --batch", "--batch 4", "results")


def test_only_what_makes_a_script_fit_is_advised_where_it_does_not(explained: Explained) -> None:
    found = explained(
        {"as it is": {"fits": False}, "fused": {"fits": True, "reserved": "910MiB"}}, advice=False
    )
    (fused,) = of_script(found)
    assert (fused.saves_bytes, fused.serves_failed_requests) == (0, True)
    assert "more than the card has" in str(found)


def test_a_recording_that_failed_may_be_of_a_script_that_needs_more(explained: Explained) -> None:
    def program(allocator: Allocator) -> None:
        nine_blocks(allocator)
        fail(allocator, "200MiB")

    found = explained(
        {"as it is": {"allocated": "2GiB", "reserved": "2GiB"}}, recorded(program), advice=False
    )
    assert found.script is not None
    assert found.script.peak_allocated_bytes == 2 * GiB
    assert found.script.seems_recorded


def test_a_script_that_uses_no_gpu_is_refused(explained: Explained) -> None:
    with pytest.raises(InputError, match=r"^train\.py allocates nothing on a GPU with these"):
        explained({"as it is": {"allocated": "", "reserved": ""}}, advice=False)


def test_half_of_an_argument() -> None:
    for arguments in (["-a", "--batch", "9", "b"], ["--batch=8"]):
        assert halving_change(arguments, "--batch").arguments == (("--batch", "4"),)
    for bad in (["--batch", "1"], ["--other", "4"]):
        with pytest.raises(InputError, match=r"--batch (cannot be halved: it is 1|is named by)"):
            halving_change(bad, "--batch")
    for bad in (["--batch"], ["--batch", "one"]):
        with pytest.raises(InputError, match="--batch needs a first value"):
            halving_change(bad, "--batch")
