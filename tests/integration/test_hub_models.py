"""Tests scripts that load a model from a hub: plimsoll predicts them, or says why it cannot.

The hub is a server on this machine. It has a small Llama's configuration, and no weights.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.loopback_hub import GATED, LLAMA, LoopbackHub, loopback_hub

if TYPE_CHECKING:
    from collections.abc import Iterator

for library in ("torch", "peft", "transformers"):
    pytest.importorskip(library)
SCRIPT = str(Path(__file__).parents[1] / "programs/prediction/lora_of_a_hub.py")
LOAD = "import sys, transformers\ntransformers.AutoConfig.from_pretrained(sys.argv[1])\n"
NOWHERE = "http://127.0.0.1:9"
"""An address where no server listens."""


@pytest.fixture(scope="module")
def hub() -> Iterator[LoopbackHub]:
    with loopback_hub() as server:
        yield server


@pytest.fixture
def loading(tmp_path: Path) -> str:
    """Returns a script that loads the configuration of the model in its argument."""
    script = tmp_path / "load.py"
    script.write_text(LOAD)
    return str(script)


def run(
    cache: Path, endpoint: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command with `cache` as the hub's cache, which earlier runs may have filled."""
    settings = {"HF_HOME": str(cache), "HF_ENDPOINT": endpoint, **environment}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=cache.parent, env={**kept, **settings},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def plimsoll(cache: Path, endpoint: str, *arguments: str, **environment: str) -> tuple[int, str]:
    """Returns the exit status of a failing command, and its one line of stderr.

    On a busy machine there are lines about progress before that line.
    """
    done = run(cache, endpoint, "plimsoll", *arguments, **environment)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines(True) if "plimsoll: after " not in line]
    return done.returncode, "".join(lines)


def test_a_lora_script_is_predicted_with_the_hubs_configuration_alone(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    hub.asked.clear()
    done = run(tmp_path / "hub", hub.address, "plimsoll", "predict", "--json", SCRIPT)
    assert done.returncode == 0, done.stderr
    assert f"fetched what describes {LLAMA} from the hub, no weights" in done.stderr
    found = json.loads(done.stdout)
    assumed = [each["what"] for each in found["assumptions"]]
    assert any(each.startswith(f"the weights of {LLAMA} are not here") for each in assumed)
    assert any(each.startswith("plimsoll downloaded this") for each in assumed)
    assert not any("the tokenizer" in each for each in assumed), "the hub has one"
    # Two Llama layers, and 1000 words of width 128: 0.58 million parameters of 2 bytes.
    assert 1_000_000 < found["by_category"]["parameters"] < 1_500_000
    asked = {path.rsplit("/", 1)[-1] for path in hub.asked}
    assert {"config.json", "tokenizer.json"} <= asked
    assert not any("safetensors" in path for path in asked)


@pytest.mark.long
def test_what_was_fetched_once_needs_no_hub(hub: LoopbackHub, tmp_path: Path, loading: str) -> None:
    cache = tmp_path / "hub"
    first = run(cache, hub.address, "plimsoll", "predict", loading, "--", LLAMA)
    assert first.returncode == 0, first.stderr
    again = run(cache, NOWHERE, "plimsoll", "predict", loading, "--", LLAMA)
    assert again.returncode == 0, again.stderr
    assert "fetched" not in again.stderr


@pytest.mark.long
def test_the_command_that_a_line_names_fetches_what_a_script_needs(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    cache = tmp_path / "hub"
    status, line = plimsoll(cache, NOWHERE, "predict", SCRIPT)
    assert status == 2
    assert line == (
        f"plimsoll: {SCRIPT} loads the model {LLAMA} from the hub, which cannot be reached ([Errno "
        "111] Connection refused); with a network, run (the configuration is enough): hf download "
        f"{LLAMA} --include '*.json'\n"
    )
    command = ["huggingface_hub.cli.hf", "download", LLAMA, "--include", "*.json"]
    fetched = run(cache, hub.address, *command)
    assert fetched.returncode == 0, fetched.stderr
    # The files include an index of weights that do not exist here.
    assert list(cache.rglob("model.safetensors.index.json"))
    done = run(cache, NOWHERE, "plimsoll", "predict", SCRIPT)
    assert done.returncode == 0, done.stderr
    assert f"the weights of {LLAMA} are not here" in done.stdout


@pytest.mark.parametrize(
    "verb",
    [
        ("predict",),
        pytest.param(("predict", "--nproc-per-node=2"), marks=pytest.mark.long),
        pytest.param(("predict", "--network"), marks=pytest.mark.long),
        ("fit", "--vary=--batch-size"),
        pytest.param(("fit", "--within=6GiB"), marks=pytest.mark.long),
    ],
)
def test_without_a_hub_every_verb_says_one_line(verb: tuple[str, ...], tmp_path: Path) -> None:
    status, line = plimsoll(tmp_path / "hub", NOWHERE, *verb, SCRIPT, HF_HUB_OFFLINE="1")
    assert status == 2
    assert line.splitlines()[-1] == (
        f"plimsoll: {SCRIPT} loads the model {LLAMA} from the hub, which cannot be reached "
        "(HF_HUB_OFFLINE is set); with a network, run (the configuration is enough): hf download "
        f"{LLAMA} --include '*.json'"
    )


def test_a_simulated_run_says_one_line_too(tmp_path: Path) -> None:
    asked = ("run", "--simulate", "L4", SCRIPT)
    status, line = plimsoll(tmp_path / "hub", NOWHERE, *asked, HF_HUB_OFFLINE="1")
    assert status == 2
    assert line.count("\n") == 1
    assert line.endswith(
        f"run (the configuration is enough): hf download {LLAMA} --include '*.json'\n"
    )


@pytest.mark.long
def test_a_sweep_in_which_every_case_fails_has_the_status_2(tmp_path: Path) -> None:
    asked = ("sweep", SCRIPT, "--vary=gpu=L4,H100")
    done = run(tmp_path / "hub", NOWHERE, "plimsoll", *asked, HF_HUB_OFFLINE="1")
    assert done.returncode == 2
    first, *others = done.stdout.splitlines()
    assert first.endswith(
        f"run (the configuration is enough): hf download {LLAMA} --include '*.json'"
    )
    assert not any("hf download" in line for line in others)


@pytest.mark.parametrize("verb", [("predict",), ("predict", "--network"), ("run", "--simulate=L4")])
@pytest.mark.parametrize(
    ("model", "why"),
    [
        (GATED, "gives it only with a token: ask for access on its page and run hf auth login; "),
        ("org/none", "has no public one of this name: check the name, or run hf auth login; "),
    ],
)
def test_a_model_that_the_hub_does_not_give_is_named(
    hub: LoopbackHub, tmp_path: Path, loading: str, verb: tuple[str, ...], model: str, why: str
) -> None:
    mark = () if verb[0] == "run" else ("--",)
    status, line = plimsoll(tmp_path / "hub", hub.address, *verb, loading, *mark, model)
    assert status == 2
    assert line.startswith(f"plimsoll: {loading} loads the model {model} from the hub, which {why}")
    command = f"hf download {model} --include '*.json'\n"
    assert line.endswith(f"; then run (the configuration is enough): {command}")


def test_a_file_that_describes_nothing_is_not_fetched(hub: LoopbackHub, tmp_path: Path) -> None:
    script = tmp_path / "rows.py"
    script.write_text(
        "from huggingface_hub import hf_hub_download\n"
        "hf_hub_download('org/rows', 'rows.parquet', repo_type='dataset', revision='v2')\n"
    )
    hub.asked.clear()
    status, line = plimsoll(tmp_path / "hub", hub.address, "predict", str(script))
    assert status == 2
    assert line == (
        f"plimsoll: {script} loads the data set org/rows from the hub, which cannot be reached "
        "(plimsoll runs scripts offline, unless --network); with a network, run: hf download "
        "org/rows rows.parquet --repo-type dataset --revision v2\n"
    )
    assert hub.asked == []


def test_a_script_that_handles_the_error_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "handles.py"
    script.write_text(
        "import transformers\n"
        "try:\n"
        "    transformers.AutoConfig.from_pretrained('org/tiny-llama')\n"
        "except OSError:\n"
        "    print('goes on')\n"
    )
    done = run(tmp_path / "hub", NOWHERE, "plimsoll", "predict", str(script))
    assert "goes on" in done.stderr
    assert done.returncode == 0, done.stderr
