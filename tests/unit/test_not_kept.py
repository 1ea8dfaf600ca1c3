"""Tests that a prediction reports the guarantees it could not keep, in its data and on stderr."""

import pytest

from plimsoll.prediction.assumed import (
    EXTRAPOLATED_NCCL,
    LETS_GO_LATER,
    READS_UNKNOWN,
    SIZES_BY_DATA,
    WATCHER_FAILED,
    Assumed,
)
from plimsoll.prediction.not_kept import NotKept, each_once, promises_not_kept, tell
from plimsoll.prediction.trials.kept_apart import KeptApart
from plimsoll.prediction.trials.kinds import Kind


def assumed(what: str, operation: str = "aten::nonzero", line: str | None = None) -> Assumed:
    return Assumed(what, operation, line, 1)


def test_each_kind_of_assumption_breaks_its_promise() -> None:
    kernels = "plimsoll assumes the kernels of compute capability 12.0"
    found = promises_not_kept(
        [
            assumed(EXTRAPOLATED_NCCL, "NCCL"),
            assumed(kernels, "compute capability 12.1"),
            assumed(LETS_GO_LATER, "NCCL's watchdog"),
            assumed(SIZES_BY_DATA[0], line="train.py:3 <module>"),
            assumed(WATCHER_FAILED, "its steps (ValueError)"),
        ],
        None,
    )
    assert [each.promise for each in found] == ["card", "pace", "values", "watching"]
    assert f"compute capability 12.1: {kernels}" in found[0].why
    assert found[2].why == f"aten::nonzero (train.py:3 <module>): {SIZES_BY_DATA[0]}"


def test_other_assumptions_break_none() -> None:
    free = assumed("plimsoll assumes that tensors of equal shape are equal", "aten::equal")
    printed_loss = assumed(READS_UNKNOWN, "aten::_local_scalar_dense")
    assert promises_not_kept([free, printed_loss], KeptApart(Kind.WALL)) == []


def test_writes_that_may_reach_real_files_are_told() -> None:
    (found,) = promises_not_kept([], KeptApart(Kind.LAYER))
    assert found.promise == "isolation"


def test_many_operations_are_counted_and_promises_told_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (found,) = promises_not_kept([assumed(SIZES_BY_DATA[0], f"op{n}") for n in range(5)], None)
    assert found.why == f"op0, op1, op2 and 2 more: {SIZES_BY_DATA[0]}"
    tell(each_once([[found], [NotKept("values", "another"), NotKept("pace", "waits")]]))
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.splitlines() == [
        f"plimsoll: the memory depends on data that plimsoll did not compute: {found.why}",
        "plimsoll: the memory depends on the host's pace: waits",
    ]
