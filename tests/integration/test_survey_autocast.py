"""Tests that the survey of a script finds the autocast under which the script's model runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from plimsoll.prediction.child_process import run
from plimsoll.prediction.options import Options
from plimsoll.prediction.survey import Survey

pytest.importorskip("torch")

SCRIPT = """
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(8, 8)
        def forward(self, x):
            return self.inner(x)

    model = Model().cuda()
    forward = model.forward
    def cast(x):  # as Accelerate wraps a model's forward()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=ENABLED):
            return forward(x)
    model.forward = cast
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(2):
        model(torch.zeros(2, 8, device="cuda")).sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(("enabled", "kind"), [(True, "bfloat16"), (False, None)])
def test_autocast_may_begin_within_the_models_call(
    enabled: bool, kind: str | None, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(dedent(SCRIPT).replace("ENABLED", str(enabled)))
    request = Options(gpu="T4").request(script)
    run(replace(request, survey=str(tmp_path / "survey.json")), shows_output=False)
    (model,) = Survey.from_dict(json.loads((tmp_path / "survey.json").read_text())).models
    assert model.autocast == kind
