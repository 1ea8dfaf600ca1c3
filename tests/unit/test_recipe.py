"""Tests recipes (scripts that plimsoll has for known models), and the errors for other models."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from plimsoll.base.errors import InputError
from plimsoll.prediction.recipes import configuration
from plimsoll.prediction.recipes.recipe import RECIPES, recipe, title_of
from plimsoll.recordings.analysis.lines import source_line
from tests.model_configurations import ALL, write_configurations

SCRIPTS = sorted(Path(configuration.__file__).with_name("scripts").glob("[!_]*.py"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_configurations(folder)
    return folder


@pytest.fixture(name="empty_cache")
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Makes an empty hub cache, and switches the network off."""
    hub = pytest.importorskip("huggingface_hub")

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no such host")

    monkeypatch.setattr(hub, "get_hf_file_metadata", refuse)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub.file_download, "HF_HUB_CACHE", str(tmp_path), raising=False)
    return tmp_path


def refusal(name: str, model: object, **given: Any) -> str:
    with pytest.raises(InputError) as raised:
        recipe(name, str(model), **given)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def configured(folder: Path, name: str, **values: object) -> Path:
    (folder / "config.json").write_text(json.dumps({**ALL[name], **values}))
    return folder


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_recipe_has_at_most_sixty_lines_and_stands_alone(script: Path) -> None:
    text = script.read_text()
    assert len(text.splitlines()) <= 60
    assert "plimsoll" not in text
    assert ast.get_docstring(ast.parse(text))


def test_what_several_recipes_need_is_the_same_in_each() -> None:
    functions: dict[str, set[str]] = {}
    count = 0
    for script in SCRIPTS:
        text = script.read_text()
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef):
                count += 1
                functions.setdefault(node.name, set()).add(ast.unparse(node))
    assert {name for name, bodies in functions.items() if len(bodies) > 1} == set()
    assert count > len(functions)


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "head"),
    [
        ("llama", "CausalLM"),
        ("gemma", "CausalLM"),
        ("t5", "Seq2SeqLM"),
        ("bert", "MaskedLM"),
        ("whisper", "SpeechSeq2Seq"),
        ("vit", "ImageClassification"),
    ],
)
def test_a_model_is_made_with_the_head_that_its_configuration_names(
    models: Path, tmp_path: Path, model: str, head: str
) -> None:
    pytest.importorskip("transformers")
    found = recipe("sft", str(models / model)).arguments
    assert found[found.index("--head") + 1] == head
    bare = configured(tmp_path, model, architectures=None)
    found = recipe("sft", str(bare)).arguments
    assert found[found.index("--head") + 1] == head


def test_a_head_that_no_recipe_knows_is_refused_unless_another_is_given(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model = configured(tmp_path, "bert", architectures=["BertForSequenceClassification"])
    assert "-- --head MaskedLM" in refusal("sft", model)
    assert (
        recipe("sft", str(model), arguments=["--head", "MaskedLM"]).arguments.count("--head") == 1
    )


@pytest.mark.parametrize(
    ("name", "model", "length"),
    [("sft", "llama", 2048), ("sft", "bert", 512), ("sft", "gpt2", 256), ("generate", "gpt2", 192),
     ("sft", "whisper", 448), ("sft", "t5", 2048)],
)  # fmt: skip
def test_a_sample_is_as_long_as_the_model_takes(
    models: Path, name: str, model: str, length: int
) -> None:
    pytest.importorskip("transformers")
    found = recipe(name, str(models / model)).arguments
    assert found[found.index("--seq-len") + 1] == str(length)


def test_what_a_model_cannot_read_or_write_is_refused(models: Path) -> None:
    pytest.importorskip("transformers")
    assert "--seq-len 4096 is too long: the model has positions for 512 tokens" in refusal(
        "sft", models / "bert", seq_len=4096
    )
    assert "has positions for 192 tokens and 64 new ones" in refusal(
        "generate", models / "gpt2", seq_len=256
    )
    # this model has rotary positions, so longer inputs work
    assert recipe("sft", str(models / "llama"), seq_len=8192)
    assert "reads no text" in refusal("sft", models / "vit", seq_len=128)
    assert "reads no text" in refusal("generate", models / "whisper", seq_len=128)
    assert "is an encoder (bert), which writes no text" in refusal("generate", models / "bert")
    assert "is an encoder (vit)" in refusal("generate", models / "vit")


def test_recipes_that_are_not_there_are_refused(models: Path) -> None:
    assert refusal("train", models / "llama") == (
        "unknown recipe 'train'; there are generate, lora, pretrain, qlora and sft"
    )
    assert "no recipe generate; there are lora, pretrain and sft" in refusal(
        "generate", models / "dit"
    )
    assert "at least 1, not 0" in refusal("sft", models / "llama", batch_size=0)


def test_a_library_that_is_not_here_is_named_with_what_installs_it(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def find(name: str) -> object:
        return name == "transformers" or None

    monkeypatch.setattr(sys.modules["plimsoll.prediction.recipes.recipe"], "find_spec", find)
    assert refusal("qlora", models / "llama") == (
        "the recipe qlora needs bitsandbytes and peft: pip install bitsandbytes peft"
    )


@pytest.mark.usefixtures("empty_cache")
def test_what_is_no_configuration_is_refused(tmp_path: Path) -> None:
    assert "has no config.json" in refusal("sft", tmp_path)
    file = tmp_path / "config.json"
    file.write_text("weights")
    assert "is no configuration in JSON" in refusal("sft", file)
    file.write_text("[]")
    assert "it holds no object" in refusal("sft", tmp_path)
    file.write_text('{"hidden_size": 8}')
    assert "names no model" in refusal("sft", tmp_path)
    nowhere = refusal("sft", "nobody/nothing")
    assert "not in the hub's cache" in nowhere
    assert "no such host" in nowhere
    assert "no name on the hub" in refusal("sft", tmp_path / "missing" / "folder")


def test_a_type_that_transformers_does_not_have_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model = configured(
        tmp_path, "llama", model_type="nobodys", architectures=["NobodysForCausalLM"]
    )
    assert "code that comes with a model is not run" in refusal("sft", model)


def test_weights_that_are_stored_otherwise_are_said(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model = configured(tmp_path, "llama", quantization_config={"quant_method": "fp8"})
    (note,) = recipe("sft", str(model)).notes
    assert note.endswith("stores its weights as fp8; the recipe has them in bfloat16")
    pytest.importorskip("peft")
    pytest.importorskip("bitsandbytes")
    assert "use a configuration without quantization_config" in refusal("qlora", model)


def test_a_name_is_found_in_the_cache_of_the_hub(empty_cache: Path) -> None:
    pytest.importorskip("transformers")
    commit = empty_cache / "models--somebody--something" / "snapshots" / ("0" * 40)
    commit.mkdir(parents=True)
    (commit.parents[1] / "refs").mkdir()
    (commit.parents[1] / "refs" / "main").write_text("0" * 40)
    configured(commit, "llama")
    found = recipe("sft", "somebody/something", batch_size=2).arguments
    assert found[:2] == ["--model", "somebody/something"]


def test_a_pipeline_has_its_denoiser_in_a_folder(tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    (tmp_path / "model_index.json").write_text('{"_class_name": "P", "transformer": ["a", "b"]}')
    assert "has no config.json" in refusal("sft", tmp_path)
    (tmp_path / "transformer").mkdir()
    configured(tmp_path / "transformer", "dit")
    expected = ["--model", str(tmp_path), "--subfolder", "transformer"]
    assert recipe("sft", str(tmp_path)).arguments == expected
    assert recipe("sft", str(tmp_path / "model_index.json")).arguments == expected


@pytest.mark.usefixtures("empty_cache")
def test_timm_is_asked_for_names_without_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "timm"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError")
    (package / "models" / "nets.py").write_text(
        "@register_model\ndef somenet_small(pretrained=False, **kwargs):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert recipe("sft", "somenet_small.in1k").arguments == ["--model", "somenet_small.in1k"]
    assert "is no folder" in refusal("sft", "somenet_large")
    (tmp_path / "here").mkdir()
    values = {"architecture": "somenet_small", "num_classes": 10}
    (tmp_path / "here" / "config.json").write_text(json.dumps(values))
    found = recipe("pretrain", str(tmp_path / "here")).arguments
    local = f"local-dir:{tmp_path / 'here'}"
    assert found == ["--model", local, "--weights", "float32", "--classes", "10"]
    assert "have no --seq-len" in refusal("sft", "somenet_small", seq_len=8)


def test_a_run_of_a_recipe_is_called_by_its_model(models: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    for name in ("sft", "pretrain", "generate"):
        made = recipe(name, str(models / "llama"))
        assert title_of(made.script, made.arguments) == f"{models / 'llama'} ({name})"
    saved = made.saved(tmp_path / "mine.py")
    assert title_of(saved.script, saved.arguments) is None
    assert saved.arguments == made.arguments
    with pytest.raises(InputError, match="exists already"):
        made.saved(tmp_path / "mine.py")


def test_lines_of_recipes_are_lines_of_a_program() -> None:
    for place in ("/env/lib/python3.12/site-packages", str(SCRIPTS[0].parents[3])):
        script = f"{place}/plimsoll/prediction/recipes/scripts/train.py"
        inside = (f"{place}/plimsoll/prediction/recipes/recipe.py", 3, "recipe")
        assert source_line([inside, (script, 7, "main")]).endswith("scripts/train.py:7 main")


def test_every_recipe_is_in_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "predict.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert set(RECIPES) <= set(rows)
