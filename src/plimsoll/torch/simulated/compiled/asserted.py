"""Evaluates the bounds checks of indices in Inductor's kernels.

A kernel's source contains `tl.device_assert((0 <= tmp4) & (tmp4 < 10), ...)`, and the definition of
`tmp4`. plimsoll evaluates a condition that depends only on integers whose values are known. It
first tests all elements of the loaded tensors. This is cheap and nearly always enough. If an
element fails, plimsoll tests exactly the elements that the kernel loads.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

_MOST_PLACES = 1 << 26
"""If a kernel has more iterations, its checks stay undecided: computing its indices is slow."""
_AXES = ("x", "y", "z", "r0_", "r1_")
"""The prefixes in Inductor's names of loop indices, such as `xindex` and `r0_index`."""
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.fmod,
    ast.BitAnd: np.bitwise_and,
    ast.BitOr: np.bitwise_or,
}
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}
Values = Callable[[Any], "np.ndarray[Any, Any] | None"]
"""A function that gets a tensor, and returns values of the tensor's storage as a flat array.

The array begins with the tensor's first element. It may also have the values that come after the
tensor's last element in the storage. The function returns None if the values are unknown.
"""


class _UndecidedError(Exception):
    """The values are unknown, or the source contains unsupported code."""


class Assertions:
    """The `device_assert` checks in one kernel's source.

    Args:
        source: The kernel's Python source.
    """

    def __init__(self, source: str) -> None:
        function = ast.parse(textwrap.dedent(source)).body[-1]
        self.expressions: dict[str, ast.expr] = {}
        self.asserted: list[tuple[ast.expr, str]] = []
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.expressions.setdefault(node.targets[0].id, node.value)
            elif isinstance(node, ast.Call) and _is_called(node, "device_assert"):
                text = node.args[1] if len(node.args) > 1 else None
                said = str(text.value) if isinstance(text, ast.Constant) else "an assertion"
                self.asserted.append((node.args[0], said))

    def failed(self, arguments: Mapping[str, Any], values: Values) -> str | None:
        """Returns the message of the first check that fails; None if all hold.

        Args:
            arguments: The arguments of the launch, by name.
            values: A function that returns the known elements of a tensor.

        Raises:
            UndecidedError: If a check could not be decided.
        """
        undecided = False
        for condition, said in self.asserted:
            try:
                if not _holds(condition, _Elements(self.expressions, arguments, values)):
                    places = _Places(self.expressions, arguments, values)
                    if not _holds(condition, places):
                        return _with_index(said, condition, places)
            except (_UndecidedError, ArithmeticError, TypeError, ValueError):
                undecided = True
        if undecided:
            raise UndecidedError
        return None


class UndecidedError(Exception):
    """`Assertions.failed` could not decide a check."""


def assertions_of(function: Any) -> Assertions | None:
    """Returns an Inductor kernel's checks; None if it has no checks or no readable source."""
    try:
        source = getattr(function, "src", None) or inspect.getsource(function.fn)
        found = Assertions(source) if "device_assert" in source else None
    except (OSError, SyntaxError, TypeError, AttributeError):
        return None
    return found if found is not None and found.asserted else None


def _is_called(node: ast.Call, name: str) -> bool:
    return isinstance(node.func, ast.Attribute) and node.func.attr == name


def _holds(condition: ast.expr, evaluation: _Evaluation) -> bool:
    return bool(np.all(evaluation.of(condition)))


def _with_index(said: str, condition: ast.expr, places: _Evaluation) -> str:
    """Returns the message of a failed check, preceded by the first index out of bounds."""
    compared = (node for node in ast.walk(condition) if isinstance(node, ast.Compare))
    names = {
        side.id
        for node in compared
        for side in (node.left, *node.comparators)
        if isinstance(side, ast.Name)
    }
    if len(names) != 1:
        return said
    held, indices = np.broadcast_arrays(places.of(condition), places.of(ast.Name(names.pop())))
    return f"an index is {indices[~held.astype(bool)][0]}: {said}"


class _Evaluation:
    """Computes a kernel's expressions with NumPy; computes each variable only once."""

    def __init__(
        self, expressions: Mapping[str, ast.expr], arguments: Mapping[str, Any], values: Values
    ) -> None:
        self._expressions = expressions
        self._arguments = arguments
        self._values = values
        self._known: dict[str, Any] = {}

    def of(self, node: ast.expr) -> Any:
        """Returns the value of an expression.

        Raises:
            _UndecidedError: If the value is unknown.
        """
        if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            return node.value
        if isinstance(node, ast.Name):
            return self._of_name(node.id)
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return _BINARY[type(node.op)](self.of(node.left), self.of(node.right))
        if isinstance(node, ast.UnaryOp):
            operand = self.of(node.operand)
            if isinstance(node.op, ast.USub):
                return np.negative(operand)
            if isinstance(node.op, ast.Invert):
                return np.invert(operand)
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARED:
            compare = _COMPARED[type(node.ops[0])]
            return compare(self.of(node.left), self.of(node.comparators[0]))
        if isinstance(node, ast.Subscript):  # indexing like x[:, None] changes only the shape
            return self.of(node.value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return self._of_call(node, node.func)
        raise _UndecidedError

    def _of_name(self, name: str) -> Any:
        if name not in self._known:
            self._known[name] = self._find(name)
        return self._known[name]

    def _find(self, name: str) -> Any:
        value = self._arguments.get(name)
        if isinstance(value, int):
            return value
        if name in self._expressions:
            return self.of(self._expressions[name])
        raise _UndecidedError

    def _of_call(self, node: ast.Call, function: ast.Attribute) -> Any:
        name = function.attr
        if name == "to":  # conversion to another type
            return self.of(function.value)
        if name == "full":
            return self.of(node.args[1])
        if name in ("broadcast_to", "cast"):
            return self.of(node.args[0])
        if name == "where":
            return np.where(*(self.of(argument) for argument in node.args[:3]))
        if name == "load":
            return self._load(node.args[0])
        raise _UndecidedError

    def _load(self, pointer: ast.expr) -> Any:
        raise NotImplementedError(pointer)

    def _elements(self, name: str) -> np.ndarray[Any, Any]:
        tensor = self._arguments.get(name)
        found = None if tensor is None else self._values(tensor)
        if found is None or found.dtype.kind not in "iub":
            raise _UndecidedError
        # The kernel converts integers to a wider type before they could overflow. plimsoll ignores
        # these conversions and computes in int64 from the start.
        return found if found.dtype.kind == "b" else found.astype(np.int64)


class _Elements(_Evaluation):
    """Computes an expression for all elements of the one tensor that it loads."""

    _loaded: str | None = None

    def _find(self, name: str) -> Any:
        if name.endswith("mask"):
            return True
        return super()._find(name)

    def _load(self, pointer: ast.expr) -> Any:
        name, _ = _loaded_from(pointer)
        if self._loaded not in (None, name):
            raise _UndecidedError
        self._loaded = name
        return self._elements(name)


class _Places(_Evaluation):
    """Computes an expression for each iteration of the kernel's loops."""

    def _find(self, name: str) -> Any:
        axis = next((axis for axis in _AXES if name == f"{axis}index"), None)
        if axis is None:
            return super()._find(name)
        sizes = {each: size for each in _AXES if (size := self._size(each)) is not None}
        if axis not in sizes or np.prod(list(map(float, sizes.values()))) > _MOST_PLACES:
            raise _UndecidedError
        shape = [-1 if each == axis else 1 for each in sizes]
        return np.arange(sizes[axis]).reshape(shape)

    def _size(self, axis: str) -> int | None:
        name = f"{axis}numel"
        if name not in self._arguments and name not in self._expressions:
            return None
        return int(super()._find(name))

    def _load(self, pointer: ast.expr) -> Any:
        name, offset = _loaded_from(pointer)
        elements = self._elements(name)
        places = self.of(offset)
        within = np.clip(places, 0, len(elements) - 1)  # the kernel masks loads outside the tensor
        return elements[within]


def _loaded_from(pointer: ast.expr) -> tuple[str, ast.expr]:
    """Returns the name of the tensor that a load reads, and the expression of its offsets."""
    if isinstance(pointer, ast.Name):
        return pointer.id, ast.Constant(0)
    is_sum = isinstance(pointer, ast.BinOp) and isinstance(pointer.op, ast.Add)
    if not (is_sum and isinstance(pointer, ast.BinOp) and isinstance(pointer.left, ast.Name)):
        raise _UndecidedError
    return pointer.left.id, pointer.right
