"""Tests watchers, plimsoll's functions that observe a program: their errors never reach it."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from plimsoll.base.watchers import Watchers, standing_in
from plimsoll.engine.tensor_uses import TensorUses
from plimsoll.prediction.child.stops import StoppedError

if TYPE_CHECKING:
    from collections.abc import Iterator

CHILD = Path(inspect.getfile(StoppedError)).parent
TENSORS = Path(inspect.getfile(TensorUses))
WATCHERS = {
    "autocast in models",
    "its training loops",
    "the number of steps that --steps allows",
    "calls of backward()",
    "calls of cross_entropy",
    "forked processes",
    "forked processes that use CUDA",
    "forks",
    "gradients after a backward pass",
    "gradients between steps",
    "models",
    "models that are wrapped",
    "modules and optimizers",
    "optimizers that are made",
    "peaks before a reset",
    "processes that use a GPU",
    "programs that the script starts",
    "resets of peaks",
    "steps of optimizers",
    "the batches of loaders",
    "the begin of compiled steps",
    "the begin of generate()",
    "the begin of modules' calls",
    "the calls of a step",
    "the causes of its memory",
    "the calls of a whole step",
    "the calls of modules",
    "the end of compiled steps",
    "the end of generate()",
    "the end of modules' calls",
    "the error that ends a rank",
    "the host's memory",
    "the host's memory after PyTorch's import",
    "the host's memory at the end",
    "the host's memory before PyTorch",
    "the results of modules",
    "the samples of loaders",
    "the script's options",
    "backward passes",
    "the end of loaders",
    "the state of optimizers",
    "the tensors of a module",
    "the tensors of modules",
    "the tensors of optimizers",
    "the tensors of the program",
    "the leaves of a backward pass",
    "the number of its steps",
    "the option to vary",
    "the time of steps",
    "what could be changed",
    "what was compiled",
    "what is compiled",
    "where the script is",
    "its memory on other ranks' cards",
    "the configurations that it reads",
    "the sizes of loaders' batches",
}
"""The name of each watcher. If a watcher fails, the report shows its name."""
REGISTRATIONS = {
    "addaudithook", "on_first_use", "register_at_fork", "register_optimizer_step_post_hook",
    "register_optimizer_step_pre_hook", "Thread", "watch_calls", "watch_compiled",
}  # fmt: skip
"""Functions that register a watcher. The watcher must be guarded."""
WITHOUT = {
    ("fewer_steps.py", "install"),  # ends loops for --steps; watches nothing
    ("compiled_parts.py", "watch_calls"),  # gets guarded functions from `labels.py`
    ("ranks.py", "__init__"),  # runs in the process that starts the ranks, where no program runs
    ("script_run.py", "enter_script"),  # sets `sys.argv`; watches nothing
}


def test_an_error_of_a_watcher_is_kept_once_and_the_program_goes_on() -> None:
    watchers = Watchers()
    errors = iter([ValueError("no\nshape"), KeyError("second")])

    def look(_: int) -> int:
        raise next(errors)

    guarded = watchers.guarded("shapes", look)
    assert guarded(1) is None
    assert guarded(2) is None
    assert watchers.failures == {"shapes": "ValueError: no"}
    assert watchers.guarded("sums", lambda x: x + 1)(2) == 3


def test_an_error_whose_text_fails_too_is_named() -> None:
    class WorseError(Exception):
        def __str__(self) -> NoReturn:
            raise RuntimeError

    def look() -> None:
        raise WorseError

    watchers = Watchers()
    watchers.guarded("texts", look)()
    assert watchers.failures == {"texts": "WorseError"}


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt,
        SystemExit,
        StoppedError,
        MemoryError,
        type("OutOfMemoryError", (RuntimeError,), {}),  # like torch.OutOfMemoryError
    ],
)
def test_what_is_meant_for_the_program_passes(error: type[BaseException]) -> None:
    def look() -> None:
        raise error

    watchers = Watchers()
    with pytest.raises(error):
        watchers.guarded("ends", look)()
    assert not watchers.failures


def test_what_stands_in_for_a_function_has_its_name_and_signature() -> None:
    def original(a: int, *, b: int = 3) -> int:
        """Adds."""
        return a + b

    noted = standing_in(original, lambda *given, **named: original(*given, **named))
    assert inspect.signature(noted) == inspect.signature(original)
    assert (noted.__name__, noted.__doc__) == ("original", "Adds.")
    assert noted.__prepare_scriptable__() is original  # type: ignore[attr-defined]


def _outer_functions(path: Path) -> Iterator[ast.FunctionDef]:
    for node in ast.parse(path.read_text()).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        yield from (each for each in inside if isinstance(each, ast.FunctionDef))


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _called(node: ast.Call) -> str | None:
    match node.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return None


def _replaces(function: ast.FunctionDef) -> bool:
    """Returns whether a function patches another object with an inner or `standing_in` function."""
    inner = {each.name for each in ast.walk(function) if isinstance(each, ast.FunctionDef)}
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign):
            continue
        is_ours = any(
            (isinstance(each, ast.Name) and each.id in inner)
            or (isinstance(each, ast.Call) and _called(each) == "standing_in")
            for each in ast.walk(node.value)
        )
        targets = [each for each in node.targets if isinstance(each, ast.Attribute)]
        if is_ours and any(_root(each) != "self" for each in targets):
            return True
    return False


def test_every_function_that_puts_a_watcher_into_the_program_guards_it() -> None:
    without = set()
    for path in CHILD.rglob("*.py"):
        for function in _outer_functions(path):
            calls = {_called(each) for each in ast.walk(function) if isinstance(each, ast.Call)}
            is_guarded = bool(calls & {"guarded", "_guarded"})
            if (calls & REGISTRATIONS or _replaces(function)) and not is_guarded:
                without.add((path.name, function.name))
    assert without <= WITHOUT


def test_every_watcher_is_listed_here() -> None:
    names = [
        node.args[0].value
        for path in (*CHILD.rglob("*.py"), TENSORS)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and _called(node) in ("guarded", "_guarded")
        if isinstance(node.args[0], ast.Constant)
    ]
    assert set(names) == WATCHERS
    assert len(names) == len(WATCHERS)
