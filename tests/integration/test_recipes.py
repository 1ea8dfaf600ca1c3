"""Tests that recipes take the same memory, to the byte, as hand-written scripts.

Hand-written scripts do not import the recipes. One process runs recipes for many models, one after
another. A second process runs the hand-written scripts for the same models in the same order.
"""

from __future__ import annotations

import gc
import inspect
import json
import runpy
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import plimsoll
from plimsoll.prediction.recipes.recipe import RECIPES, recipe
from tests.commands import run_plimsoll
from tests.model_configurations import DIFFUSION, ENCODERS, SPEECH, TEXT, write_configurations
from tests.simulated import output_of

pytest.importorskip("torch")
if find_spec("torchvision") is not None:
    try:
        import torchvision  # type: ignore[import-not-found]  # noqa: F401
    except RuntimeError as error:
        pytest.skip(f"torchvision is built for another PyTorch: {error}", allow_module_level=True)
SIZE, LENGTH = 2, 128
NEEDS = {"lora": ("peft",), "qlora": ("bitsandbytes", "peft")}
TRANSFORMERS = [*TEXT, *ENCODERS, *SPEECH]


def skip_without(*libraries: str) -> None:
    """Skips the test unless these libraries are installed; does not import them."""
    if missing := [each for each in libraries if find_spec(each) is None]:
        pytest.skip(f"needs {', '.join(missing)}")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_configurations(folder)
    return folder


def figures(run: Callable[[], Any]) -> tuple[int, int]:
    """Returns a program's peaks of allocated and reserved bytes."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    run()
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


def run_recipes(commands: list[list[str]]) -> None:
    """Runs recipes, and prints the memory of each."""

    def run() -> None:
        left = runpy.run_path(sys.argv[0], run_name="__main__")
        for each in list(left.values()):
            if inspect.isfunction(each):
                # Frees the recipe's globals: when a hand-written function returns, its variables
                # are freed too.
                each.__globals__.clear()

    for command in commands:
        sys.argv = command
        print(figures(run))


# --- hand-written scripts -------------------------------------------------------------------------


def by_hand(what: str, folder: str, names: list[str]) -> None:
    """Runs hand-written scripts, and prints the memory of each."""
    for name in names:
        print(figures(lambda name=name: globals()[what](Path(folder) / name)))  # type: ignore[misc]


def model_of(folder: Path, dtype: Any) -> Any:
    """Returns a model on the GPU, made by its family's own class."""
    import torch
    import transformers

    values = json.loads((folder / "config.json").read_text())
    kind = getattr(transformers, values["architectures"][0])
    torch.set_default_dtype(dtype)
    with torch.device("cuda"):
        model = kind(kind.config_class(**values))
    torch.set_default_dtype(torch.float32)
    return model


def batch_for(family: str) -> dict[str, Any]:
    """Returns a batch with the inputs that the family takes."""
    import torch

    words, labels = (torch.randint(0, 1000, (SIZE, LENGTH), device="cuda") for _ in range(2))
    if family == "vit":
        images = torch.randn(SIZE, 3, 64, 64, device="cuda")
        return {"pixel_values": images, "labels": torch.tensor([0, 1], device="cuda")}
    if family == "whisper":
        return {"input_features": torch.randn(SIZE, 80, 200, device="cuda"), "labels": labels}
    if family in ("bert", "t5"):
        return {"input_ids": words, "labels": labels}
    return {"input_ids": words, "labels": labels, "use_cache": False}


def train(model: Any, family: str, optimizer: Any, learning: list[Any]) -> None:
    import torch

    for _ in range(3):
        batch = batch_for(family)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learning, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def sft(folder: Path) -> None:
    import torch

    model = model_of(folder, torch.bfloat16).train()
    learning = list(model.parameters())
    train(model, folder.name, torch.optim.AdamW(learning, fused=True), learning)


def pretrain(folder: Path) -> None:
    import torch

    model = model_of(folder, torch.float32).train()
    learning = list(model.parameters())
    train(model, folder.name, torch.optim.AdamW(learning, fused=True), learning)


def lora(folder: Path) -> None:
    import torch
    from peft import LoraConfig, get_peft_model

    adapters = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
    model = get_peft_model(model_of(folder, torch.bfloat16), adapters).train()
    learning = [each for each in model.parameters() if each.requires_grad]
    train(model, folder.name, torch.optim.AdamW(learning, fused=True), learning)


def qlora(folder: Path) -> None:
    import bitsandbytes
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    kind = type(model_of(folder, torch.bfloat16))
    bits = transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    # The folder has a configuration but no weights, so the weights are random.
    model = kind.from_pretrained(
        folder, quantization_config=bits, dtype=torch.bfloat16, device_map={"": 0}
    )
    model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    adapters = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
    model = get_peft_model(model, adapters).train()
    learning = [each for each in model.parameters() if each.requires_grad]
    train(model, folder.name, bitsandbytes.optim.AdamW8bit(learning), learning)


def generate(folder: Path) -> None:
    import torch

    model = model_of(folder, torch.bfloat16).eval()
    words = torch.randint(0, 1000, (SIZE, LENGTH), device="cuda")
    asked = {"attention_mask": torch.ones(SIZE, LENGTH, dtype=torch.int64, device="cuda")}
    if folder.name == "whisper":
        words, asked = torch.randn(SIZE, 80, 200, device="cuda", dtype=torch.bfloat16), {}
    model.generate(
        words, **asked, min_new_tokens=64, max_new_tokens=64, do_sample=False, pad_token_id=0
    )


def denoiser_of(folder: Path, dtype: Any) -> Any:
    import diffusers
    import torch

    values = json.loads((folder / "config.json").read_text())
    torch.set_default_dtype(dtype)
    with torch.device("cuda"):
        return getattr(diffusers, values.pop("_class_name"))(**values)


def noisy(family: str) -> list[Any]:
    """Returns noisy inputs for a diffusion model of this family."""
    import torch

    with torch.device("cuda"):
        times, latents = torch.randint(0, 1000, (SIZE,)), torch.randn(SIZE, 4, 16, 16)
        if family == "dit":
            return [latents, times, times]
        text, pooled = torch.randn(SIZE, LENGTH, 64), torch.randn(SIZE, 64)
        if family == "pixart":
            return [latents, text, times]
        if family == "sd3":
            return [torch.randn(SIZE, 16, 16, 16), text, pooled, times]
        if family == "flux":
            places = [torch.ones(64, 3), torch.ones(LENGTH, 3)]
            return [torch.randn(SIZE, 64, 64), text, pooled, times, *places, torch.ones(SIZE)]
        return [latents, times, text]


def denoise(model: Any, family: str, learning: list[Any]) -> None:
    import torch

    optimizer = torch.optim.AdamW(learning, fused=True)
    for _ in range(3):
        batch = noisy(family)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            found = model(*batch).sample.float()
            loss = torch.nn.functional.mse_loss(found, torch.randn_like(found))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learning, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def diffusion_sft(folder: Path) -> None:
    import torch

    model = denoiser_of(folder, torch.bfloat16)
    denoise(model, folder.name, list(model.parameters()))


def diffusion_pretrain(folder: Path) -> None:
    import torch

    model = denoiser_of(folder, torch.float32)
    denoise(model, folder.name, list(model.parameters()))


def diffusion_lora(folder: Path) -> None:
    import torch
    from peft import LoraConfig, inject_adapter_in_model

    model = denoiser_of(folder, torch.bfloat16).requires_grad_(False)
    targets = ["to_q", "to_k", "to_v", "to_out.0"]
    inject_adapter_in_model(LoraConfig(r=16, target_modules=targets), model)
    denoise(model, folder.name, [each for each in model.parameters() if each.requires_grad])


def images(name: str) -> None:
    import timm
    import torch

    model = timm.create_model(name).to(device="cuda", dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(3):
        batch, labels = torch.randn(SIZE, 3, 224, 224).cuda(), torch.randint(1000, (SIZE,)).cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(batch), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()


def images_by_hand(names: list[str]) -> None:
    for name in names:
        print(figures(lambda name=name: images(name)))  # type: ignore[misc]


# --------------------------------------------------------------------------------------------------


def command(what: str, model: Path) -> list[str]:
    reads_text = model.name != "vit" and (what, model.name) != ("generate", "whisper")
    more = ["--latent-size", "16"] if model.name == "flux" else []
    made = recipe(
        what, str(model), batch_size=SIZE, seq_len=LENGTH if reads_text else None, arguments=more
    )
    return [str(made.script), *made.arguments]


@pytest.mark.parametrize(
    "what",
    ["sft", *(pytest.param(each, marks=pytest.mark.long) for each in RECIPES if each != "sft")],
)
def test_recipes_take_what_scripts_by_hand_take(models: Path, what: str) -> None:
    skip_without(*NEEDS.get(what, ()))
    names = [*TEXT, *SPEECH] if what == "generate" else TRANSFORMERS
    commands = [command(what, models / name) for name in names]
    ours = output_of(run_recipes, arguments=[commands]).splitlines()
    theirs = output_of(by_hand, arguments=[what, str(models), names]).splitlines()
    assert len(ours) == len(names)
    assert dict(zip(names, ours, strict=True)) == dict(zip(names, theirs, strict=True))


@pytest.mark.parametrize(
    "what",
    ["lora", "sft", "pretrain"],
)
@pytest.mark.long
def test_recipes_of_diffusers_take_what_scripts_by_hand_take(models: Path, what: str) -> None:
    skip_without("diffusers", *NEEDS.get(what, ()))
    commands = [command(what, models / name) for name in DIFFUSION]
    ours = output_of(run_recipes, arguments=[commands]).splitlines()
    arguments = [f"diffusion_{what}", str(models), list(DIFFUSION)]
    theirs = output_of(by_hand, arguments=arguments).splitlines()
    assert len(ours) == len(DIFFUSION)
    assert dict(zip(DIFFUSION, ours, strict=True)) == dict(zip(DIFFUSION, theirs, strict=True))


def test_the_recipe_for_timm_takes_what_a_script_by_hand_takes() -> None:
    skip_without("timm", "torchvision")
    names = ["vit_tiny_patch16_224", "resnet18"]
    commands = []
    for name in names:
        made = recipe("sft", name, batch_size=SIZE)
        commands.append([str(made.script), *made.arguments])
    ours = output_of(run_recipes, arguments=[commands])
    assert ours == output_of(images_by_hand, arguments=[names])


BY_HAND = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

with torch.device("cuda"):
    torch.set_default_dtype(torch.bfloat16)
    model = LlamaForCausalLM(LlamaConfig.from_json_file({file!r}))
    torch.set_default_dtype(torch.float32)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
for step in range(3):
    tokens, labels = (torch.randint(1000, (4, 256), device="cuda") for _ in range(2))
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(tokens, labels=labels, use_cache=False).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.long
def test_the_command_writes_a_recipe_out_and_predicts_what_a_script_by_hand_takes(
    models: Path, tmp_path: Path
) -> None:
    mine, hand = tmp_path / "mine.py", tmp_path / "hand.py"
    hand.write_text(BY_HAND.format(file=str(models / "llama" / "config.json")))
    done = run_plimsoll(
        "predict", "--model", models / "llama", "--recipe", "sft", "--batch-size", 4,
        "--seq-len", 256, "--save-recipe", mine, "--gpu", "A100-80GB", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"python {mine} --model {models / 'llama'}" in done.stderr
    assert mine.read_bytes() == recipe("sft", str(models / "llama")).script.read_bytes()
    found = json.loads(done.stdout)
    by_hand = plimsoll.predict(hand, gpu="A100-80GB")
    assert found["script"] == str(mine)
    assert found["peak_allocated_bytes"] == by_hand.peak_allocated_bytes
    assert found["peak_reserved_bytes"] == by_hand.peak_reserved_bytes
    assert found["by_category"] == by_hand.by_category


@pytest.mark.long
def test_fit_finds_the_largest_batch_of_a_recipe_and_what_to_change_about_it(
    models: Path, tmp_path: Path
) -> None:
    asked = ["--model", models / "llama", "--recipe", "sft", "--seq-len", 512, "--json"]
    found = json.loads(run_plimsoll("fit", *asked, "--vary=--batch-size", "--gpu", "T4").stdout)
    assert found["largest"] > 8
    assert found["smallest_failing"] > found["largest"]
    changed = tmp_path / "changed.py"
    done = run_plimsoll(
        "fit", *asked, "--batch-size", 64, "--within", "1GiB", "--gpu", "T4", "--apply", changed
    )
    plan = json.loads(done.stdout)
    assert plan["fits"], done.stderr
    assert plan["script"] == f"{models / 'llama'} (sft)"
    assert plan["patch"].startswith("--- train.py\n")
    assert f"{changed} --model {models / 'llama'} --head CausalLM" in plan["command"]
    after = plimsoll.predict(changed, ["--model", str(models / "llama"), "--batch-size", "64",
                                       "--seq-len", "512"], gpu="T4")  # fmt: skip
    # The plan needs at most 1 GiB. This prediction has no such limit, so PyTorch may cache more.
    # Cached memory counts as reserved, so the test compares the allocated bytes.
    assert after.peak_allocated_bytes < 1 << 30
