"""Finds the script of a recipe, and the script's arguments for a model."""

from __future__ import annotations

import ast
import shlex
import sys
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError
from plimsoll.base.files import NewFile
from plimsoll.prediction.recipes.configuration import Configuration, Library, find_configuration
from plimsoll.prediction.recipes.heads import can_write, head_of, most_tokens, reads_text
from plimsoll.prediction.recipes.served import engine_of_script, served_title

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from os import PathLike

RECIPES = ("sft", "lora", "qlora", "generate", "pretrain")
"""The names of all recipes."""

_SCRIPTS = Path(__file__).with_name("scripts")
_FLOAT32 = ("--weights", "float32")
_TABLE: dict[Library, dict[str, tuple[str, ...]]] = {
    "transformers": {
        "sft": ("train.py",),
        "lora": ("lora.py",),
        "qlora": ("qlora.py",),
        "generate": ("generate.py",),
        "pretrain": ("train.py", *_FLOAT32),
    },
    "diffusers": {
        "sft": ("diffusion_train.py",),
        "lora": ("diffusion_lora.py",),
        "pretrain": ("diffusion_train.py", *_FLOAT32),
    },
    "timm": {"sft": ("image_train.py",), "pretrain": ("image_train.py", *_FLOAT32)},
}
"""The script and the fixed arguments of each recipe, by library."""
_USUAL_TOKENS = 2048
_NEW_TOKENS = 64  # the default of generate.py
_TOKENS_STEP = 64
"""The default number of tokens in a sample is rounded down to a multiple of this.

Some models use a few of their positions for something other than the sample's tokens. The rounding
keeps these positions free.
"""


@dataclass(frozen=True)
class Recipe:
    """A script that comes with plimsoll, and its arguments for one model.

    >>> import plimsoll
    >>> made = plimsoll.recipe("lora", "Qwen/Qwen3-8B", batch_size=4)  # doctest: +SKIP
    >>> plimsoll.predict(made.script, made.arguments).fits  # doctest: +SKIP
    True

    Attributes:
        name: The recipe.
        model: The model, as given.
        script: The script's file.
        arguments: The script's arguments.
        notes: Sentences on how the script differs from what the model's configuration suggests.
    """

    name: str
    model: str
    script: Path
    arguments: list[str]
    notes: list[str] = field(default_factory=list)

    def saved(self, path: str | PathLike[str], *, force: bool = False) -> Recipe:
        """Copies the script to a file that the user can edit. Returns the recipe with that file.

        Args:
            path: The path of the file.
            force: Whether to replace an existing file.

        Raises:
            InputError: If the file exists, or cannot be written.
        """
        with NewFile(path, force=force) as file:
            file.write(self.script.read_bytes())
        return replace(self, script=Path(path))


def recipe(
    name: str,
    model: str,
    *,
    batch_size: int | None = None,
    seq_len: int | None = None,
    arguments: Sequence[str] = (),
) -> Recipe:
    """Returns the script for a usual task with a model, as input for `predict`, `fit` or `sweep`.

    >>> import plimsoll
    >>> made = plimsoll.recipe("sft", "Qwen/Qwen3-8B", seq_len=4096)  # doctest: +SKIP
    >>> plimsoll.fit(made.script, "--batch-size", made.arguments).largest  # doctest: +SKIP
    6

    Args:
        name: "sft" (trains all parameters, in bfloat16), "lora", "qlora" (LoRA with frozen 4-bit
            weights), "generate" (text), or "pretrain" (float32 under autocast).
        model: A config.json or its folder, a name on Hugging Face's hub, or the name of a timm
            model. Weights are not read.
        batch_size: The number of samples in a batch. The default is that of the script, 1.
        seq_len: The number of tokens in a sample. The default is 2048 or, if less, the model's
            maximum.
        arguments: Further arguments for the script.

    Raises:
        InputError: If the recipe is unknown, or does not exist for such a model. Also if the
            model's configuration is missing or unreadable, or a library is missing.
    """
    if name not in RECIPES:
        *others, last = sorted(RECIPES)
        raise InputError(f"unknown recipe {name!r}; there are {', '.join(others)} and {last}")
    for what, value in (("batch size", batch_size), ("length of a sample", seq_len)):
        if value is not None and value < 1:
            raise InputError(f"the {what} is at least 1, not {value}")
    found = find_configuration(model)
    if name not in _TABLE[found.library]:
        *others, last = sorted(_TABLE[found.library])
        raise InputError(
            f"{model}: is a model of {found.library}, for which there is no recipe {name}; there "
            f"are {', '.join(others)}{' and ' if others else ''}{last}"
        )
    file, *own = _TABLE[found.library][name]
    script = _SCRIPTS / file
    _check_libraries(name, script)
    match found.library:
        case "transformers":
            own += _for_transformers(name, found, seq_len, arguments)
        case "diffusers":
            own += [] if found.subfolder is None else ["--subfolder", found.subfolder]
            own += [] if seq_len is None else ["--seq-len", str(seq_len)]
        case "timm":
            own += _for_timm(found, seq_len)
    own += [] if batch_size is None else ["--batch-size", str(batch_size)]
    return Recipe(
        name, model, script, ["--model", found.name, *own, *arguments], list(_notes(name, found))
    )


def title_of(script: str | PathLike[str], arguments: Sequence[str]) -> str | None:
    """Returns the title of a run: "MODEL (RECIPE)" for a recipe, "vllm serve MODEL" for an engine.

    The title is None if the script is not one of plimsoll's own.
    """
    path = Path(script)
    if engine := engine_of_script(path):
        return served_title(engine, arguments)
    if path.parent != _SCRIPTS or "--model" not in arguments[:-1]:
        return None
    model = arguments[arguments.index("--model") + 1]
    names = [
        (len(own), name)
        for recipes in _TABLE.values()
        for name, (file, *own) in recipes.items()
        if file == path.name and shlex.join(own) in shlex.join(arguments)
    ]
    return f"{model} ({max(names)[1]})"


def _check_libraries(name: str, script: Path) -> None:
    """Raises an `InputError` if a library that the script imports is missing.

    It does not check PyTorch, which `predict` checks itself.
    """
    tree = ast.parse(script.read_text(encoding="utf-8"))
    asked = {each.name for node in tree.body if isinstance(node, ast.Import) for each in node.names}
    others = sorted(asked - set(sys.stdlib_module_names) - {"torch"})
    missing = [each for each in others if find_spec(each) is None]
    if missing:
        raise InputError(
            f"the recipe {name} needs {' and '.join(missing)}: pip install {' '.join(missing)}"
        )


def _for_transformers(
    name: str, found: Configuration, seq_len: int | None, arguments: Sequence[str]
) -> list[str]:
    """Returns the arguments that set the model's class and the number of tokens in a sample."""
    most, takes_no_more = most_tokens(found)
    given = next((value for option, value in pairwise(arguments) if option == "--head"), None)
    head = head_of(found) if given is None else given
    if name == "generate" and not can_write(head):
        raise InputError(
            f"{found.name}: is an encoder ({found.values['model_type']}), which writes no text; "
            "the recipes for it are sft, lora, qlora and pretrain"
        )
    own = ["--head", head] if given is None else []
    if not (reads_text(head) or (name != "generate" and can_write(head))):
        if seq_len is not None:
            raise InputError(f"{found.name}: reads no text, so that --seq-len means nothing")
        return own
    room = most if most is None or name != "generate" else most - _NEW_TOKENS
    if seq_len is None:
        usual = min(_USUAL_TOKENS, room or _USUAL_TOKENS)
        seq_len = usual // _TOKENS_STEP * _TOKENS_STEP or usual
    elif takes_no_more and room is not None and seq_len > room:
        written = f" and {_NEW_TOKENS} new ones" if name == "generate" else ""
        raise InputError(
            f"{found.name}: --seq-len {seq_len} is too long: the model has positions for {room} "
            f"tokens{written}"
        )
    return [*own, "--seq-len", str(seq_len)]


def _for_timm(found: Configuration, seq_len: int | None) -> list[str]:
    """Returns the arguments that set a timm model's number of classes."""
    if seq_len is not None:
        raise InputError(f"{found.name}: reads images, which have no --seq-len")
    classes = found.values.get("num_classes")
    return ["--classes", str(classes)] if classes else []


def _notes(name: str, found: Configuration) -> Iterator[str]:
    """Yields sentences on how the recipe differs from what the model's configuration suggests."""
    stored = found.values.get("quantization_config")
    if found.library != "transformers" or not isinstance(stored, dict):
        return
    method = stored.get("quant_method", "another type")
    if name == "qlora":
        raise InputError(
            f"{found.name}: its weights are stored as {method}, but the recipe qlora needs "
            "unquantized weights, to quantize them to four bits; use a configuration without "
            "quantization_config"
        )
    precision = "float32" if name == "pretrain" else "bfloat16"
    yield f"{found.name} stores its weights as {method}; the recipe has them in {precision}"
