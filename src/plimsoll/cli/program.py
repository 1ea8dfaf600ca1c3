"""The program that `predict` and `fit` run: a script, a module, or a recipe for a model."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.base.errors import InputError
from plimsoll.base.files import check_can_be_made
from plimsoll.base.printable import printable
from plimsoll.base.script_file import kept_script
from plimsoll.prediction.recipes.served import check_engine, engine_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from plimsoll.prediction.recipes.recipe import Recipe


@dataclass(frozen=True)
class Program:
    """The program to run.

    Attributes:
        script: A file, or a module's name.
        arguments: The arguments that the script or module gets.
        words: The words that name the program in a command that plimsoll suggests.
        further: The words that come after `--` in such a command.
        recipe: The recipe that made the script; None if the script is the user's own.
    """

    script: str
    arguments: list[str]
    words: list[str]
    further: list[str]
    recipe: Recipe | None = None

    @property
    def is_module(self) -> bool:
        """Whether `script` is a module's name."""
        return self.words[0] == "-m"

    def saved(self, path: Path | None, *, force: bool) -> Program:
        """Writes a recipe's script to a file, and prints the command that runs the file.

        Returns the program whose script is that file. If this program is not made by a recipe, or
        `path` is None, does nothing and returns this program.

        Args:
            path: The file to write; None writes nothing.
            force: Whether an existing file may be overwritten.

        Raises:
            InputError: If the file cannot be written.
        """
        if path is None or self.recipe is None:
            return self
        saved = self.recipe.saved(path, force=force)
        run = shlex.join(["python", str(path), *saved.arguments])
        print(printable(f"{path} has the recipe's script; to run it: {run}"), file=sys.stderr)
        return Program(str(saved.script), saved.arguments, [str(path)], saved.arguments, saved)


def chosen_program(
    script: str | None,
    arguments: Sequence[str] | None,
    *,
    module: bool,
    model: str | None,
    recipe: str | None,
    batch_size: int | None,
    seq_len: int | None,
    save_recipe: Path | None,
    force: bool,
    is_job: bool,
) -> Program:
    """Returns the program that the command line names: a script, or the recipe for a model.

    Raises:
        InputError: If the command line names neither a script nor a model, or names both, or if
            `plimsoll.recipe` raises this error.
    """
    if model is None:
        given = {
            "--recipe": recipe, "--batch-size": batch_size, "--seq-len": seq_len,
            "--save-recipe": save_recipe,
        }  # fmt: skip
        if option := next((name for name, value in given.items() if value is not None), None):
            raise InputError(
                f"{option} is for a recipe, and needs --model; options of a script go after --"
            )
        if script is None:
            raise InputError("give a SCRIPT, or --model with --recipe")
        if engine := engine_of(script, arguments or (), module=module):
            own = list(arguments or ())[0 if module else 1 :]
            check_engine(engine, own)
            return Program(str(engine.script), own, [engine.command, "serve", *own], [])
        words = [*(["-m"] if module else []), script]
        script = script if module else str(kept_script(script))
        return Program(script, list(arguments or ()), words, list(arguments or ()))
    return _of_recipe(
        model, recipe, script, arguments or (), module=module, batch_size=batch_size,
        seq_len=seq_len, save_recipe=save_recipe, force=force, is_job=is_job,
    )  # fmt: skip


def _of_recipe(
    model: str,
    name: str | None,
    script: str | None,
    arguments: Sequence[str],
    *,
    module: bool,
    batch_size: int | None,
    seq_len: int | None,
    save_recipe: Path | None,
    force: bool,
    is_job: bool,
) -> Program:
    from plimsoll.prediction.recipes.recipe import RECIPES, recipe

    if name is None:
        raise InputError(f"a --model needs a --recipe: {', '.join(RECIPES)}")
    if module or (script is not None and not script.startswith("-")):
        which = "-m" if module else script
        raise InputError(
            f"--model and --recipe take the place of a script; leave out --model, or {which}"
        )
    if is_job:
        raise InputError(
            "recipes are for one GPU; save this one with --save-recipe, and start that script as "
            "a job"
        )
    if save_recipe is not None:
        check_can_be_made(save_recipe, force=force)
    own = [*([] if script is None else [script]), *arguments]
    found = recipe(name, model, batch_size=batch_size, seq_len=seq_len, arguments=own)
    for note in found.notes:
        print(printable(f"note: {note}"), file=sys.stderr)
    words = ["--model", model, "--recipe", name]
    words += [] if seq_len is None else ["--seq-len", str(seq_len)]
    return Program(str(found.script), found.arguments, words, own, found)
