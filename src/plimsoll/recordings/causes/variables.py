"""Finds where a program reads the value that a statement gives to a variable."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def parents_of(tree: ast.AST) -> dict[ast.AST, ast.AST]:
    """Returns the parent of each node below a node."""
    return {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


def root_of(value: ast.expr) -> ast.Name | None:
    """Returns the name with which an expression such as `self.log["a"]` begins."""
    while isinstance(value, ast.Attribute | ast.Subscript):
        value = value.value
    return value if isinstance(value, ast.Name) else None


def stored_names(target: ast.expr, depth: int = 0) -> Iterator[tuple[str, int]]:
    """Yields the names that an assignment's target binds, and the number of tuples around each."""
    match target:
        case ast.Name(name):
            yield name, depth
        case ast.Tuple(parts) | ast.List(parts):
            for part in parts:
                yield from stored_names(part, depth + 1)
        case ast.Starred(value):
            yield from stored_names(value, depth)


@dataclass(frozen=True)
class Variables:
    """The variables of a program.

    Attributes:
        tree: The program.
        parents: The parent of each node of `tree`.
    """

    tree: ast.Module
    parents: dict[ast.AST, ast.AST]

    def root_text(self, statement: ast.stmt) -> str:
        """Returns the text of a list or a sum that a statement changes, without its subscripts."""
        match statement:
            case ast.Expr(ast.Call(ast.Attribute(kept))) | ast.Assign([kept]):
                pass
            case ast.AugAssign(kept):
                pass
            case _:
                return ""
        while isinstance(kept, ast.Subscript):
            kept = kept.value
        return ast.unparse(kept)

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yields the nodes around a node, the innermost first."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def scope(self, node: ast.AST) -> ast.AST:
        """Returns the function around a node, or the program."""
        return next((one for one in self.around(node) if isinstance(one, _Function)), self.tree)

    def is_shared(self, name: str, node: ast.AST) -> bool:
        """Returns whether a function shares a variable with code outside it."""
        scope = self.scope(node)
        return any(
            isinstance(one, ast.Global | ast.Nonlocal) and name in one.names
            for one in ast.walk(scope)
        ) or (isinstance(scope, _Function) and not self._is_bound(scope, name))

    def attributes(self, kept: ast.Attribute, statement: ast.stmt) -> Iterator[ast.expr]:
        """Yields where an attribute such as `self.total` is read, in the class around a statement.

        The statement's own reads do not count.
        """
        classes = (one for one in self.around(statement) if isinstance(one, ast.ClassDef))
        own = set(ast.walk(statement))
        text = ast.unparse(kept)
        for node in ast.walk(next(classes, self.tree)):
            match node:
                case ast.Attribute(ctx=ast.Load()) if node not in own:
                    if ast.unparse(node) == text:
                        yield node

    def values(self, name: str, statement: ast.stmt) -> Iterator[ast.expr | None]:
        """Yields the values that other statements give to a variable; None if one is unknown."""
        scope = self.scope(statement)
        if isinstance(scope, _Function) and name in _parameters(scope):
            yield None
        for node in self._nodes(scope, name):
            if node is statement:
                continue
            match node:
                case ast.Assign(targets, value):
                    yield from (each for one in targets for each in _value_in(one, value, name))
                case ast.AnnAssign(ast.Name(id=found), value=value) if found == name:
                    yield value
                case ast.AugAssign(ast.Name(id=found)) if found == name:
                    yield None
                case ast.For(target) if any(name == one for one, _ in stored_names(target)):
                    yield None

    def is_filled_elsewhere(self, name: str, statement: ast.stmt) -> bool:
        """Returns whether another statement adds elements to the list `name`."""
        own = set(ast.walk(statement))
        for node in self._nodes(self.scope(statement), name):
            match node:
                case ast.Call(ast.Attribute(ast.Name(found), "append" | "extend" | "insert")):
                    if found == name and node not in own:
                        return True
        return False

    def reads(self, name: str, definition: ast.AST) -> Iterator[ast.Name]:
        """Yields where the program may read the value that a node gives to a variable.

        Args:
            name: The variable.
            definition: The assignment, the loop or the comprehension that binds the name, or the
                call that adds the value to the container with this name.
        """
        inside: ast.AST | None = None
        if isinstance(definition, ast.For | ast.AsyncFor):
            inside = definition
        elif isinstance(definition, ast.comprehension):
            inside = self.parents[definition]
        own = set() if inside is not None else set(ast.walk(definition))
        nodes = list(self._nodes(inside or self.scope(definition), name))
        stores = [node for node in nodes if self._is_store(node, name) and node is not definition]
        for node in nodes:
            if not isinstance(node, ast.Name) or node.id != name or node in own:
                continue
            if isinstance(node.ctx, ast.Load) and self._reaches(definition, node, stores):
                yield node

    def _reaches(self, definition: ast.AST, read: ast.Name, stores: list[ast.AST]) -> bool:
        """Returns whether a read may get the definition's value.

        It may not if one of the stores always replaces the value before the read.
        """
        if isinstance(definition, ast.comprehension):
            return True
        if self.scope(read) is not self.scope(definition):
            return True  # a function inside reads the variable at any time
        begin, place = _end(definition), _start(read)
        if isinstance(definition, ast.For | ast.AsyncFor):
            begin = _start(definition)
        dominating = [one for one in stores if self._precedes(one, read)]
        if place >= begin:
            return not any(_start(one) > begin for one in dominating)
        loops = [one for one in self.around(definition) if isinstance(one, _LOOPS)]
        shared = [one for one in self.around(read) if one in loops]
        # If a loop contains the definition and the read, its next pass may read the value.
        return bool(shared) and not any(one in set(ast.walk(shared[-1])) for one in dominating)

    def _precedes(self, store: ast.AST, read: ast.AST) -> bool:
        """Returns whether a store always runs before a read.

        True if the read is in a later statement of the store's block, or in the body of a loop
        whose target is the store.
        """
        if isinstance(store, ast.For | ast.AsyncFor):
            return any(one in store.body for one in [read, *self.around(read)])
        parent = self.parents.get(store)
        around = [read, *self.around(read)]
        for block in _blocks(parent):
            if store in block:
                later = block[block.index(store) + 1 :]
                return any(one in around for one in later)
        return False

    def _nodes(self, scope: ast.AST, name: str) -> Iterator[ast.AST]:
        """Yields the nodes of a scope.

        Leaves out functions, lambdas and comprehensions that have a variable of their own with this
        name. Keeps the first iterable of such a comprehension, because Python evaluates it outside
        the comprehension.
        """
        pending = [scope]
        while pending:
            node = pending.pop()
            yield node
            for child in ast.iter_child_nodes(node):
                if isinstance(child, _Function | ast.Lambda) and self._is_bound(child, name):
                    continue
                if isinstance(child, _Comprehension) and _binds(child, name):
                    pending.append(child.generators[0].iter)
                    continue
                pending.append(child)

    def _is_bound(self, function: ast.AST, name: str) -> bool:
        """Returns whether a function has a variable of its own with this name."""
        if name in _parameters(function):
            return True
        if isinstance(function, ast.Lambda):
            return False
        nodes = list(self._nodes(function, name))
        if any(isinstance(one, ast.Global | ast.Nonlocal) and name in one.names for one in nodes):
            return False
        return any(self._is_store(one, name) or _adds_to(one, name) for one in nodes)

    def _is_store(self, node: ast.AST, name: str) -> bool:
        match node:
            case ast.Assign(targets):
                return any(name == one for each in targets for one, _ in stored_names(each))
            case ast.AnnAssign(target, value=ast.expr()) | ast.NamedExpr(target):
                return isinstance(target, ast.Name) and target.id == name
            case ast.For(target) | ast.AsyncFor(target):
                return any(name == one for one, _ in stored_names(target))
        return False


def _value_in(target: ast.expr, value: ast.expr, name: str) -> Iterator[ast.expr | None]:
    """Yields the value that an assignment gives to a name; None if it is unknown."""
    match target, value:
        case ast.Name(found), _:
            if found == name:
                yield value
        case (ast.Tuple(names), ast.Tuple(parts)) if len(names) == len(parts):
            for one, part in zip(names, parts, strict=True):
                yield from _value_in(one, part, name)
        case _:
            yield from (None for one, _ in stored_names(target) if one == name)


def _adds_to(node: ast.AST, name: str) -> bool:
    match node:
        case ast.AugAssign(ast.Name(id=found)):
            return found == name
    return False


def _binds(node: ast.AST, name: str) -> bool:
    generators = getattr(node, "generators", [])
    return any(name == one for each in generators for one, _ in stored_names(each.target))


def _blocks(node: ast.AST | None) -> Iterator[list[ast.AST]]:
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if isinstance(block, list):
            yield block


def _parameters(function: ast.AST) -> list[str]:
    if not isinstance(function, _Function | ast.Lambda):
        return []
    of = function.args
    named = [*of.posonlyargs, *of.args, *of.kwonlyargs]
    named += [one for one in (of.vararg, of.kwarg) if one is not None]
    return [one.arg for one in named]


def _start(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def _end(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0)
