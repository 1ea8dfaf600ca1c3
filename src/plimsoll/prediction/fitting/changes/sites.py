"""Finds the statements of a script to which changes apply."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.prediction.fitting.script_text import CannotChangeError, own_statements

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.prediction.fitting.script_text import ScriptText
    from plimsoll.prediction.survey import ModelCall, ModelUse, OptimizerUse, Place, Survey


@dataclass(frozen=True)
class Pass:
    """A forward and a backward pass in the script: consecutive statements of one block.

    Attributes:
        function: The function that contains the statements.
        block: The block.
        first: The index of the statement that calls the model.
        last: The index of the statement that calls `backward`.
        call: The model's call, as the survey noted it.
    """

    function: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
    block: list[ast.stmt]
    first: int
    last: int
    call: ModelCall

    @property
    def statements(self) -> list[ast.stmt]:
        """The statements from the model's call to the call of `backward`."""
        return self.block[self.first : self.last + 1]

    @property
    def forward(self) -> list[ast.stmt]:
        """The statements from the model's call to the last one before the call of `backward`."""
        return self.block[self.first : self.last]


def find_pass(script: ScriptText, survey: Survey) -> Pass:
    """Finds the statements from the model's call to the call of `backward`.

    Raises:
        CannotChangeError: If no block of the script has both calls in this order, or the script
            does not call `backward` in exactly one place.
    """
    model = trained(survey)
    if len(survey.backwards) != 1:
        raise CannotChangeError(
            f"the script calls backward() in {len(survey.backwards)} places, not in one"
        )
    (backward,) = survey.backwards
    for call in reversed(model.calls):
        if call.place.function == backward.function:
            return _pass(script, call, backward)
    raise CannotChangeError("the model is called in one function, and backward() in another")


def _pass(script: ScriptText, call: ModelCall, backward: Place) -> Pass:
    calls = script.statements(script.now(call.place.line))
    backwards = script.statements(script.now(backward.line))
    for (block, first), (other, last) in reversed(list(zip(calls, backwards, strict=False))):
        if block is other:
            if first > last:
                break
            function = script.function(call.place.function)
            return Pass(function, block, first, last, call)
    raise CannotChangeError("the model's call does not stand before backward() in one block")


def only_model(survey: Survey) -> ModelUse | None:
    """Returns the trained model; None if there is none, or several."""
    return survey.models[0] if len(survey.models) == 1 else None


def trained(survey: Survey) -> ModelUse:
    """Returns the model that the script trains.

    Raises:
            CannotChangeError: If the script trains no model, or several.
    """
    model = only_model(survey)
    if model is None:
        raise CannotChangeError(f"the script trains {len(survey.models) or 'no'} models, not one")
    return model


@dataclass(frozen=True)
class Named:
    """A variable that holds the model, and the last statement that assigns it.

    Attributes:
        name: The expression, such as "model" or "self.net".
        path: The path from the model that runs to the held module: "module" for a model that
            DistributedDataParallel wraps, "" for the whole model.
        statement: The statement after which the variable holds the model.
    """

    name: str
    path: str
    statement: ast.stmt


def find_model(script: ScriptText, model: ModelUse) -> Named:
    """Finds the variable that holds the model.

    Raises:
        CannotChangeError: If plimsoll finds no variable of the script that holds it.
    """
    for name, function, path in sorted(model.names, key=lambda each: bool(each[2])):
        if path:
            continue
        for statement in _assignments(script, name, function):
            return Named(name, path, statement)
    raise CannotChangeError("no variable of the script holds the model")


def _assignments(script: ScriptText, name: str, function: str) -> Iterator[ast.stmt]:
    """Yields the assignments of a variable, the last one first."""
    scopes: list[ast.AST] = [script.function(function)]
    attribute = name.partition(".")[2]
    if attribute and "." in function:
        scopes = [_class_of(script, function)]
    found = [
        statement
        for scope in scopes
        for statement in _statements(scope, into_functions=bool(attribute))
        if any(ast.unparse(target) == name for target in _targets(statement))
    ]
    yield from reversed(found)


def _statements(scope: ast.AST, *, into_functions: bool) -> Iterator[ast.stmt]:
    for statement in own_statements(scope):
        yield statement
        if into_functions and isinstance(statement, ast.FunctionDef):
            yield from own_statements(statement)


def _class_of(script: ScriptText, function: str) -> ast.AST:
    name = function.rpartition(".")[0]
    node: ast.AST = script.tree
    for part in name.split("."):
        inside = [
            each
            for each in ast.iter_child_nodes(node)
            if isinstance(each, ast.ClassDef | ast.FunctionDef) and each.name == part
        ]
        if not inside:
            return script.tree
        node = inside[-1]
    return node


def _targets(statement: ast.stmt) -> Iterator[ast.expr]:
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield from target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        yield statement.target


def find_optimizer_call(script: ScriptText, use: OptimizerUse) -> tuple[ast.Call, ast.stmt]:
    """Returns the call that makes an optimizer, and the statement that contains this call.

    Raises:
        CannotChangeError: If the script does not call the optimizer's class by its name.
    """
    if use.made is None:
        raise CannotChangeError("a library makes the optimizer, not the script")
    block, place = script.statements(script.now(use.made.line))[-1]
    statement = block[place]
    kind = use.kind.rpartition(".")[2]
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and last_name(node.func) == kind:
            return node, statement
    raise CannotChangeError(f"the script makes the optimizer otherwise than by calling {kind}")


def find_optimizer_name(statement: ast.stmt, call: ast.Call) -> str:
    """Returns the variable to which a statement assigns a call's result.

    Raises:
        CannotChangeError: If there is none.
    """
    if (
        isinstance(statement, ast.Assign)
        and statement.value is call
        and isinstance(statement.targets[0], ast.Name | ast.Attribute)
    ):
        return ast.unparse(statement.targets[0])
    raise CannotChangeError("no variable of the script holds the optimizer")


def last_name(node: ast.expr) -> str:
    """Returns the last part of a dotted name, such as "AdamW" for "torch.optim.AdamW"."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def names_read(statements: list[ast.stmt]) -> set[str]:
    """Returns the variables that statements read."""
    return _names(statements, ast.Load)


def names_written(statements: list[ast.stmt]) -> set[str]:
    """Returns the variables that statements assign."""
    return _names(statements, ast.Store)


def _names(statements: list[ast.stmt], context: type[ast.expr_context]) -> set[str]:
    nodes = (node for statement in statements for node in ast.walk(statement))
    return {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, context)
    }


def calls_of(statements: list[ast.stmt], name: str) -> Iterator[ast.Call]:
    """Yields the calls of functions with this name, such as `f` or `module.f` for "f"."""
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and last_name(node.func) == name:
                yield node
