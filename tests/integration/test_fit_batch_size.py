"""Tests that `fit` without `--vary` finds the batch size, in a script or in a JSON file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from plimsoll.prediction.fitting.within import fit_within

pytest.importorskip("torch")

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader

loader = DataLoader(torch.randn(16384, 512), batch_size=size)
model = nn.Sequential(nn.Linear(512, 8192), nn.ReLU(inplace=True), nn.Linear(8192, 10)).cuda()
with torch.inference_mode():
    for batch in loader:
        model(batch.cuda())
"""


@pytest.mark.parametrize(
    "where", [pytest.param("constant", marks=pytest.mark.long), "configuration"]
)
def test_a_smaller_batch_is_the_plan_in_a_module_and_by_a_configuration(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    begin = "BATCH_SIZE = 4096\nsize = BATCH_SIZE"
    if where == "configuration":
        begin = "import json\nsize = json.load(open('train.json'))['batch_size']"
        (tmp_path / "train.json").write_text('{"batch_size": 4096, "width": 8192}')
    (tmp_path / "infers.py").write_text(begin + SCRIPT)
    plan = fit_within("infers", module=True, within="940MiB")
    assert plan.fits
    (change,) = plan.plan
    if where == "constant":
        assert plan.patch.count("-BATCH_SIZE = 4096") == 1
        assert change.name.startswith("set the batch in line 1 to ")
    else:
        assert plan.patch == ""
        assert change.name.startswith("set batch_size to ")
        assert change.name.endswith("train.json, line 1")
        assert (tmp_path / "train.json").read_text() == '{"batch_size": 4096, "width": 8192}'
    assert change.caveat.endswith("of the batch of 4096")
