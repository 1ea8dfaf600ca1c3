"""Names of functions, methods and modules, grouped by what they do with a value.

`value_uses` handles a few further functions itself. It assumes that any other function may need the
value's graph.
"""

from __future__ import annotations

BACKWARD = frozenset({"backward", "manual_backward", "grad", "autograd_backward"})
"""Methods and functions that compute gradients."""

FOR_NUMBERS = frozenset(
    {"print", "float", "int", "str", "repr", "format", "bool", "len", "join"}
    | {"log", "info", "debug", "warning", "error", "log_dict", "log_metrics", "add_scalar"}
    | {"add_scalars", "write", "set_postfix", "set_postfix_str", "set_description"}
    | {"dump", "dumps", "secho", "echo", "pprint"}
)
"""Functions that accept a Python number in place of a tensor, and compute no gradients."""

NUMBER_MODULES = frozenset({"math", "statistics", "np", "numpy", "json"})
"""Modules whose functions take Python numbers, and keep no graph."""

TORCH_MODULES = frozenset({"torch", "F", "nn", "functional"})
"""Modules whose functions need tensors."""

WITHOUT_GRAPH = frozenset(
    {"all_reduce", "broadcast", "all_gather", "all_gather_into_tensor"}
    | {"isinstance", "hasattr", "isnan", "isfinite", "isinf", "save"}
)
"""Functions that need a tensor, but not its graph."""

DETACHED = frozenset(
    {"item", "tolist", "numpy", "detach", "data", "shape", "dtype", "device", "size", "dim", "ndim"}
    | {"numel", "requires_grad", "is_cuda", "grad_fn", "argmax", "argmin", "isnan", "isfinite"}
)
"""Methods and attributes of a tensor whose results have no graph."""

OF_LISTS = frozenset({"append", "extend", "clear", "insert", "sort", "reverse", "count", "index"})
"""Methods of a list whose results do not hold its elements."""

SAME_DEPTH = frozenset({"list", "tuple", "sorted", "reversed", "set", "iter"})
"""Functions whose results hold the same elements as the container that they get."""
