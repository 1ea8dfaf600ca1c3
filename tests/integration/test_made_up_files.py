"""Tests that programs run without weight and tokenizer files: a configuration suffices."""

from __future__ import annotations

from pathlib import Path

import pytest

import plimsoll
from plimsoll.base.errors import ScriptError
from tests.simulated import on_simulated_gpus, output_of

LOADING = """
import sys

import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).cuda()
words = torch.randint(1000, (2, 64), device="cuda")
model(input_ids=words, labels=words).loss.backward()
print([(name, tuple(p.shape), str(p.dtype)) for name, p in model.named_parameters()])
print(torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())
print(torch.cuda.max_memory_reserved(), torch.rand(3))
"""


@on_simulated_gpus()
def save_models(folder: str) -> None:
    """Saves two models, each once with weights and once as a configuration alone.

    One model has tied weights. The other is a mixture of experts.
    """
    from transformers import GPT2Config, GPT2LMHeadModel, MixtralConfig, MixtralForCausalLM

    plain = GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=1000)
    experts = MixtralConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        vocab_size=1000,
    )
    GPT2LMHeadModel(plain).save_pretrained(f"{folder}/tied/files")
    MixtralForCausalLM(experts).save_pretrained(f"{folder}/experts/files")
    GPT2LMHeadModel(plain).config.save_pretrained(f"{folder}/tied/alone")
    MixtralForCausalLM(experts).config.save_pretrained(f"{folder}/experts/alone")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_models(str(folder))
    return folder


@pytest.mark.long
@pytest.mark.parametrize("kind", ["tied", "experts"])
def test_a_model_without_files_takes_what_one_with_files_takes(models: Path, kind: str) -> None:
    with_files, alone = (
        output_of(LOADING, arguments=[models / kind / place]) for place in ("files", "alone")
    )
    assert alone == with_files


@on_simulated_gpus()
def check_weights(folder: str) -> None:
    from transformers import AutoModel, AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.lm_head.weight is model.transformer.wte.weight
    assert (model.transformer.ln_f.weight == 1).all()
    assert 0.01 < model.transformer.h[0].mlp.c_fc.weight.std() < 0.03
    assert not AutoModel.from_pretrained(folder).training


@pytest.mark.long
def test_weights_are_those_of_a_new_model(models: Path) -> None:
    check_weights(str(models / "tied" / "alone"))


@on_simulated_gpus()
def check_tokenizer(folder: str, vocabulary: int) -> None:
    from transformers import AutoTokenizer, GPT2Config, GPT2Tokenizer

    GPT2Config(vocab_size=vocabulary, bos_token_id=3, eos_token_id=[7, 8]).save_pretrained(folder)
    text = (
        "It was the best of times, it was the worst of times; many people were talking about it, "
        "and nobody understood what happened during that summer in the northern mountains."
    )
    for kind in (AutoTokenizer, GPT2Tokenizer):
        tokenizer = kind.from_pretrained(folder, padding_side="left")
        assert len(tokenizer) == tokenizer.vocab_size == vocabulary
        assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (3, 7)
        assert tokenizer.pad_token is None
        assert tokenizer.padding_side == "left"
        encoded = tokenizer(text, return_offsets_mapping=True)
        assert 3.8 < len(text) / len(encoded["input_ids"]) < 4.8
        assert len(set(encoded["input_ids"])) > 3
        assert max(encoded["input_ids"]) < vocabulary
        assert tokenizer.decode(encoded["input_ids"]).startswith("i")
        assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)


@pytest.mark.long
@pytest.mark.parametrize("vocabulary", [100, 5000, 128256])
def test_a_tokenizer_without_files_has_the_vocabulary(tmp_path: Path, vocabulary: int) -> None:
    check_tokenizer(str(tmp_path), vocabulary)


@pytest.mark.long
def test_what_is_made_up_is_said_with_the_line(models: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        f"name = {str(models / 'tied' / 'alone')!r}\n"
        "model = AutoModelForCausalLM.from_pretrained(name).cuda()\n"
        "tokenizer = AutoTokenizer.from_pretrained(name)\n"
    )
    report = str(plimsoll.predict(script))
    assert "weights of" in report
    assert "script.py:3" in report
    assert "tokenizer of" in report
    assert "script.py:4" in report


@pytest.mark.long
def test_files_that_are_here_are_read_and_nothing_is_said(models: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from transformers import AutoModelForCausalLM\n"
        f"AutoModelForCausalLM.from_pretrained({str(models / 'tied' / 'files')!r}).cuda()\n"
    )
    assert "made up" not in str(plimsoll.predict(script))


@pytest.mark.long
def test_a_library_of_an_unknown_version_works_as_it_is(tmp_path: Path) -> None:
    package = tmp_path / "transformers"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "configuration_utils.py").write_text("NAME = 'of a version to come'\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "from transformers.configuration_utils import NAME\n"
        "torch.zeros(20 << 20, dtype=torch.uint8, device='cuda')\n"
    )
    report = str(plimsoll.predict(script))
    assert "plimsoll does not know this version of the library" in report
    assert "20.00 MiB" in report


def test_an_error_of_the_library_itself_goes_through(tmp_path: Path) -> None:
    package = tmp_path / "transformers"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "configuration_utils.py").write_text("raise AttributeError('of its own')\n")
    script = tmp_path / "script.py"
    script.write_text("from transformers.configuration_utils import NAME\n")
    with pytest.raises(ScriptError, match="of its own"):
        plimsoll.predict(script)


def test_models_of_transformers_4_have_configurations(tmp_path: Path) -> None:
    package = tmp_path / "transformers"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "configuration_utils.py").write_text(
        "class PretrainedConfig:\n"
        "    @classmethod\n"
        "    def get_config_dict(cls, name):\n"
        "        raise OSError('no such file')\n"
    )
    script = tmp_path / "script.py"
    script.write_text(
        "from transformers.configuration_utils import PretrainedConfig\n"
        "PretrainedConfig.get_config_dict('a/model')\n"
    )
    with pytest.raises(ScriptError, match="a folder with that file, or set"):
        plimsoll.predict(script)
