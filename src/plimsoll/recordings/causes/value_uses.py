"""Finds in the source what a program does with a sum or a list that a loop fills."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from enum import IntEnum

from plimsoll.recordings.causes.known_calls import (
    BACKWARD,
    DETACHED,
    FOR_NUMBERS,
    NUMBER_MODULES,
    OF_LISTS,
    SAME_DEPTH,
    TORCH_MODULES,
    WITHOUT_GRAPH,
)
from plimsoll.recordings.causes.variables import Variables, parents_of, root_of, stored_names


class Use(IntEnum):
    """How a program uses a sum, or the elements of a list. The weightiest use counts.

    Attributes:
        AS_NUMBER: All uses are known, and work with a Python number too.
        AS_TENSOR: A use may need a tensor, but none needs its graph.
        UNKNOWN: The value reaches code that plimsoll cannot follow and that may need the graph.
        IN_BACKWARD: A backward pass runs from the plain sum.
        IN_GRADIENT: Gradients are computed in another way, for example from scaled values.
    """

    AS_NUMBER = 0
    AS_TENSOR = 1
    UNKNOWN = 2
    IN_BACKWARD = 3
    IN_GRADIENT = 4


def use_of(tree: ast.Module, statement: ast.stmt, kept: ast.expr) -> Use:
    """Returns what a program does with a sum or a list.

    Args:
        tree: The program.
        statement: The statement of `tree` that adds a value to the sum or the list.
        kept: The sum or the list, a part of `statement`.
    """
    root = root_of(kept)
    if root is None:
        return Use.UNKNOWN
    keys: list[ast.expr] = []
    inner = kept
    while isinstance(inner, ast.Subscript):
        keys.insert(0, inner.slice)
        inner = inner.value
    uses = _Uses(Variables(tree, parents_of(tree)), statement, keys[:1])
    is_list = isinstance(statement, ast.Expr)
    flow = _Flow(depth=len(keys) + is_list)
    if isinstance(inner, ast.Name):
        uses.follow_name(inner.id, statement, flow)
        uses.note_other_values(inner.id, is_list=is_list)
    elif isinstance(inner, ast.Attribute):
        uses.note(Use.AS_TENSOR)  # other code may read the attribute
        if root.id not in ("self", "cls"):
            uses.note(Use.UNKNOWN)
        for node in uses.variables.attributes(inner, statement):
            uses.follow(node, flow)
        if uses.found is Use.IN_BACKWARD:  # other methods may add to the attribute
            return Use.IN_GRADIENT
    else:
        return Use.UNKNOWN
    return uses.found


@dataclass(frozen=True)
class _Flow:
    """How an expression holds the value.

    Attributes:
        depth: The number of containers around the value.
        is_sum: Whether the gradient of the expression is the gradient of the plain sum.
        has_graph: Whether the expression may have the graph of the value.
    """

    depth: int
    is_sum: bool = True
    has_graph: bool = True

    def changed(self) -> _Flow:
        """Returns the flow of a result computed from this one."""
        return replace(self, is_sum=False)

    def deeper(self, by: int = 1) -> _Flow:
        """Returns the flow inside `by` more containers, or fewer where `by` is negative."""
        return replace(self, depth=max(0, self.depth + by))


@dataclass
class _Uses:
    """Follows a value through a program and notes its weightiest use."""

    variables: Variables
    statement: ast.stmt
    keys: list[ast.expr]
    found: Use = Use.AS_NUMBER
    _seen: set[tuple[int, str, _Flow]] = field(default_factory=set)

    def note(self, use: Use, flow: _Flow | None = None) -> None:
        """Notes a use. If `flow` has no graph, notes `AS_TENSOR` at most."""
        if flow is not None and not flow.has_graph:
            use = min(use, Use.AS_TENSOR)
        self.found = max(self.found, use)

    def follow_name(self, name: str, definition: ast.AST, flow: _Flow) -> None:
        """Follows the value that `definition` gives to a variable, wherever this value is read."""
        key = (id(definition), name, flow)
        if key in self._seen:
            return
        self._seen.add(key)
        if self.variables.is_shared(name, definition):
            self.note(Use.UNKNOWN, flow)
        for node in self.variables.reads(name, definition):
            self.follow(node, flow)

    def note_other_values(self, name: str, *, is_list: bool) -> None:
        """Notes what else a variable holds besides the values that the statement adds."""
        if self.found is Use.IN_BACKWARD and self.variables.is_filled_elsewhere(
            name, self.statement
        ):
            self.note(Use.IN_GRADIENT)
        for value in self.variables.values(name, self.statement):
            if is_list and not _is_fresh_list(value):
                self.note(Use.UNKNOWN)  # the list may have other names
            elif not is_list and not _is_zero(value) and self.found is Use.IN_BACKWARD:
                self.note(Use.IN_GRADIENT)

    def follow(self, node: ast.expr, flow: _Flow) -> None:
        """Notes what a program does with an expression that holds the value."""
        key = (id(node), "", flow)
        if key in self._seen:
            return
        self._seen.add(key)
        parent = self.variables.parents.get(node)
        match parent:
            case ast.Attribute(attr=name):
                self._attribute(parent, name, flow)
            case ast.Subscript(value=value):
                self._subscript(parent, node, is_value=value is node, flow=flow)
            case ast.Call() | ast.keyword() | ast.Starred():
                self._argument(node, parent, flow)
            case ast.BinOp():
                self._operand(node, parent, flow)
            case ast.Assign() | ast.AnnAssign() | ast.NamedExpr() | ast.AugAssign():
                self._assigned(parent, flow)
            case ast.For() | ast.AsyncFor() | ast.comprehension():
                self._iterated(node, parent, flow)
            case _:
                self._plain(node, parent, flow)

    def _plain(self, node: ast.expr, parent: ast.AST | None, flow: _Flow) -> None:
        match parent:
            case ast.Expr() | ast.FormattedValue() | ast.If() | ast.While() | ast.Assert():
                pass
            case ast.Compare():
                self.follow(parent, replace(flow, has_graph=False))
            case ast.UnaryOp(op=ast.Not()):
                pass
            case ast.UnaryOp() | ast.BoolOp():
                self.follow(parent, flow.changed())
            case ast.IfExp(test=test):
                if test is not node:
                    self.follow(parent, flow.changed())
            case ast.Tuple() | ast.List() | ast.Set() | ast.Dict() | ast.DictComp():
                self.follow(parent, flow.deeper())
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                self.follow(parent, flow.deeper())
            case _:
                self.note(Use.UNKNOWN, flow)

    def _attribute(self, node: ast.Attribute, name: str, flow: _Flow) -> None:
        call = self.variables.parents.get(node)
        is_called = isinstance(call, ast.Call) and call.func is node
        if flow.depth:
            if name in OF_LISTS and is_called:
                return
            if isinstance(call, ast.Call) and is_called and name in ("values", "copy"):
                self.follow(call, flow)
            elif isinstance(call, ast.Call) and is_called and name in ("pop", "get", "setdefault"):
                self.follow(call, flow.deeper(-1))
            elif isinstance(call, ast.Call) and is_called and name == "items":
                self.follow(call, flow.deeper())
            else:
                self.note(Use.UNKNOWN, flow)
            return
        if name in BACKWARD:
            self.note(Use.IN_BACKWARD if flow.is_sum else Use.IN_GRADIENT, flow)
            return
        self.note(Use.AS_TENSOR)
        if name not in DETACHED:
            same = name in ("sum", "cpu", "cuda", "to", "float", "clone", "squeeze")
            result = call if isinstance(call, ast.Call) and is_called else node
            self.follow(result, flow if same else flow.changed())

    def _subscript(
        self, parent: ast.Subscript, node: ast.expr, *, is_value: bool, flow: _Flow
    ) -> None:
        if not is_value:
            self.note(Use.AS_TENSOR)
        elif flow.depth:
            is_root = ast.unparse(node) == self.variables.root_text(self.statement)
            if is_root and self.keys and _are_other_keys(self.keys[0], parent.slice):
                return
            is_slice = isinstance(parent.slice, ast.Slice)
            self.follow(parent, flow if is_slice else flow.deeper(-1).changed())
        else:
            self.note(Use.AS_TENSOR)
            self.follow(parent, flow.changed())

    def _operand(self, node: ast.expr, parent: ast.BinOp, flow: _Flow) -> None:
        if isinstance(parent.op, ast.Mod) and isinstance(parent.left, ast.Constant | ast.JoinedStr):
            return  # text is formatted
        if flow.depth:
            self.follow(parent, flow.changed())
            return
        if isinstance(parent.op, ast.MatMult):
            self.note(Use.AS_TENSOR)
        is_sum = isinstance(parent.op, ast.Add) or (
            isinstance(parent.op, ast.Sub) and parent.left is node
        )
        self.follow(parent, flow if is_sum else flow.changed())

    def _assigned(self, parent: ast.AST, flow: _Flow) -> None:
        targets: list[ast.expr]
        match parent:
            case ast.Assign(targets):
                pass
            case ast.NamedExpr():
                targets = [parent.target]
                self.follow(parent, flow)
            case ast.AugAssign(op=op):
                targets = [parent.target]
                flow = flow if isinstance(op, ast.Add) else flow.changed()
            case ast.AnnAssign():
                targets = [parent.target]
            case _:
                return
        for target in targets:
            match target:
                case ast.Name(name):
                    self.follow_name(name, parent, flow)
                case ast.Tuple() | ast.List():
                    for name, depth in stored_names(target):
                        self.follow_name(name, parent, flow.deeper(-depth).changed())
                case ast.Subscript(ast.Name(name)):
                    self.follow_name(name, parent, flow.deeper().changed())
                case _:
                    self.note(Use.UNKNOWN, flow)

    def _iterated(self, node: ast.expr, parent: ast.AST, flow: _Flow) -> None:
        if not isinstance(parent, ast.For | ast.AsyncFor | ast.comprehension):
            return
        if parent.iter is not node:
            return  # a condition
        if not flow.depth:
            self.note(Use.AS_TENSOR)
        for name, depth in stored_names(parent.target):
            self.follow_name(name, parent, flow.deeper(-1 - depth).changed())

    def _argument(self, node: ast.expr, parent: ast.AST, flow: _Flow) -> None:
        if isinstance(parent, ast.Starred):
            parent, flow = self.variables.parents[parent], flow.deeper(-1)
        call = self.variables.parents.get(parent) if isinstance(parent, ast.keyword) else parent
        if not isinstance(call, ast.Call) or call.func is node:
            self.note(Use.UNKNOWN, flow)
            return
        match call.func:
            case ast.Name(name):
                self._passed(call, name, "", flow)
            case ast.Attribute(value, name):
                root = root_of(value)
                self._passed(call, name, root.id if root else "", flow)
            case _:
                self.note(Use.UNKNOWN, flow)

    def _passed(self, call: ast.Call, name: str, module: str, flow: _Flow) -> None:
        """Notes what the function `name` does with the value, which is an argument of `call`.

        `module` is the first name in the call, such as `torch` in `torch.nn.f(x)`; empty for
        `f(x)`.
        """
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
        if name in BACKWARD:
            self.note(Use.IN_GRADIENT, flow)
        elif name in WITHOUT_GRAPH or name in ("tensor", "as_tensor", "Tensor", "FloatTensor"):
            self.note(Use.AS_TENSOR)
        elif module in TORCH_MODULES:
            self.note(Use.AS_TENSOR)
            is_sum = name in ("stack", "cat", "concat", "hstack", "sum")
            self.follow(call, replace(flow if is_sum else flow.changed(), depth=0))
        elif module in NUMBER_MODULES or (name in FOR_NUMBERS and not _keeps(name)):
            pass
        elif name == "sum" and not module:
            self.follow(call, flow.deeper(-1))
        elif name in ("min", "max", "abs", "round") and not module:
            self.follow(call, flow.deeper(-1).changed())
        elif name in ("enumerate", "zip") and not module:
            self.follow(call, flow.deeper().changed())
        elif name == "map" and ast.unparse(call.args[0]) in FOR_NUMBERS:
            pass
        elif name in SAME_DEPTH and not module:
            self.follow(call, flow)
        elif _keeps(name) and isinstance(receiver, ast.Name):
            deeper = 0 if name == "extend" else 1
            self.follow_name(receiver.id, call, flow.deeper(deeper).changed())
        else:
            self.note(Use.UNKNOWN, flow)
            self.follow(call, replace(flow.changed(), depth=0))


def _keeps(name: str) -> bool:
    return name in ("append", "extend", "appendleft")


def _are_other_keys(one: ast.expr, other: ast.expr) -> bool:
    """Returns whether two keys are known to differ."""
    constants = isinstance(one, ast.Constant) and isinstance(other, ast.Constant)
    return constants and ast.unparse(one) != ast.unparse(other)


def _is_fresh_list(value: ast.expr | None) -> bool:
    """Returns whether an expression makes a container that has no other name yet."""
    match value:
        case ast.List() | ast.Dict() | ast.ListComp() | ast.DictComp():
            return True
        case ast.Call(ast.Name("list" | "dict" | "defaultdict" | "deque")):
            return True
        case ast.Call(ast.Attribute(attr="defaultdict" | "deque")):
            return True
    return False


def _is_zero(value: ast.expr | None) -> bool:
    """Returns whether an expression is a number, or a tensor of zeros."""
    match value:
        case ast.Constant():
            return True
        case ast.Call(ast.Attribute(ast.Name("torch"), "zeros" | "tensor")):
            return "requires_grad" not in ast.unparse(value)
    return False
