"""Tests a real notebook whose kernel has a simulated GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.integrations.needed import needs
from tests.recordings import EXAMPLES, ROOT
from tests.simulated import output_of

CELLS = {
    "load": "%load_ext plimsoll\nimport torch, plimsoll",
    "model": """%%memory
def build(width):
    return torch.nn.Linear(width, width, bias=False, device="cuda")

model = build(4096)
large = torch.zeros(64 << 20, device="cuda")
del large
torch.arange(3)""",
    "again": """%%memory --record again.plim
held = torch.zeros(4 << 20, device="cuda")
del model""",
    "host": "%%memory\nnumber = 7",
    "exists": "%%memory --record again.plim\nnumber = 8",
    "unknown": "%%memory --recrod again.plim\nnumber = 9",
    "fails": """%%memory
kept = torch.zeros(2 << 20, device="cuda")
torch.zeros(1 << 40, device="cuda")""",
    "after": "number",
    "recorder": "plimsoll.record('again.plim')",
    "replays": "plimsoll.replay(EXAMPLE)",
    "explanation": "plimsoll.explain(EXAMPLE, advice=False)",
}  # fmt: skip


def execute(sources: list[str]) -> None:
    """Runs a notebook on this process's GPUs, and prints its cells' outputs as JSON."""
    import nbformat
    from nbclient import NotebookClient

    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, kernel_name="python3", allow_errors=True, timeout=300).execute()
    print(json.dumps([cell.outputs for cell in notebook.cells]))


def outputs(tmp_path: Path) -> dict[str, list[Any]]:
    example = repr(str(EXAMPLES / "gpt2_adamw.pickle.gz"))
    sources = [source.replace("EXAMPLE", example) for source in CELLS.values()]
    printed = output_of(execute, arguments=[sources], folder=tmp_path)
    return dict(zip(CELLS, json.loads(printed.splitlines()[-1]), strict=True))


def shown(cell: list[Any], kind: str = "text/plain") -> str:
    """Returns a cell's first displayed output; if it displays nothing, the cell's value."""
    found = [one for one in cell if one["output_type"] in ("display_data", "execute_result")]
    return str(found[0]["data"][kind])


@needs("nbclient", "ipykernel")
def test_cells_say_what_they_take_and_results_show_themselves(tmp_path: Path) -> None:
    found = outputs(tmp_path)
    assert found["load"] == []

    rows = shown(found["model"]).splitlines()
    assert rows[0] == (
        "In[2] takes 320.00 MiB of GPU 0 at its peak, and keeps 64.00 MiB; with what was "
        "allocated before, the peak is 320.00 MiB"
    )
    assert rows[2:] == ["    256.00 MiB  In[2]:6", "     64.00 MiB  In[2]:3 build"]
    assert "<td style='text-align:left'>In[2]:6</td>" in shown(found["model"], "text/html")
    (value,) = [one for one in found["model"] if one["output_type"] == "execute_result"]
    assert value["data"]["text/plain"] == "tensor([0, 1, 2])"

    first = shown(found["again"]).splitlines()[0]
    assert first.startswith("In[3] takes 16.00 MiB of GPU 0 at its peak, and gives back 48.00 MiB")
    assert first.endswith("the peak is 80.00 MiB")

    assert shown(found["host"]) == "In[4] used no GPU memory"
    (complaint,) = found["exists"]
    assert "again.plim: exists already and is not overwritten" in complaint["text"]

    (complaint,) = found["unknown"]
    assert complaint["text"].startswith("UsageError: unrecognized arguments: --recrod")

    assert shown(found["fails"]).splitlines()[-1] == "      8.00 MiB  In[7]:2"
    (error,) = [one for one in found["fails"] if one["output_type"] == "error"]
    assert error["ename"] == "OutOfMemoryError"
    # the cell that could not be recorded did not run, so the value is unchanged
    assert shown(found["after"]) == "7"

    assert shown(found["recorder"]) == "again.plim: not recording, 0 events written"
    for name in ("replays", "explanation"):
        assert "<table>" in shown(found[name], "text/html")
        assert "gpt2_adamw" in shown(found[name])


SCRIPT = """
import sys, torch
torch.zeros(int(sys.argv[2]) << 28, device="cuda")  # so many GiB
"""


@needs("nbclient", "ipykernel")
def test_without_a_gpu_scripts_are_predicted_and_cells_say_what_would_help(tmp_path: Path) -> None:
    (tmp_path / "held.py").write_text(SCRIPT)
    (tmp_path / "fails.py").write_text("raise ValueError('odd')\n")
    sources = [
        "%load_ext plimsoll\nimport plimsoll",
        "%%memory\nnumber = 7",
        "plimsoll.predict('held.py', ['--gib', '2'], gpu='T4')",
        "plimsoll.fit('held.py', '--gib', ['--gib', '8'], gpu='T4', at_most=16)",
        "plimsoll.fit('fails.py', '--gib', gpu='T4')",
    ]
    program = f"from tests.integrations.test_notebook import execute; execute({sources})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    _, (complaint,), predicted, fitted, failed = json.loads(done.stdout.splitlines()[-1])
    assert complaint["text"].startswith("UsageError: there is nothing to record")
    assert "plimsoll run --simulate H100" in complaint["text"]

    assert shown(predicted).startswith("held.py fits on T4: ")
    assert "<td style='text-align:left'>held.py:3 &lt;module&gt;</td>" in shown(
        predicted, "text/html"
    )
    assert shown(fitted).startswith("T4: --gib 14")
    assert ">14</td>" in shown(fitted, "text/html")
    text = "".join(one.get("text", "") for one in failed)
    assert "ValueError: odd" in text  # the script's own traceback
