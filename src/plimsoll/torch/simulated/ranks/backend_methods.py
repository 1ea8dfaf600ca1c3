"""Methods that ProcessGroupNCCL and ProcessGroupGloo have and their base class lacks.

PyTorch's own code calls some of them if a group's backend is NCCL: for example, Inductor calls
`_add_ephemeral_timeout` to lengthen timeouts when it finds a graph in its cache. The names are
those of torch/csrc/distributed/c10d/init.cpp and torch/_C/_distributed_c10d.pyi, which agree in
PyTorch 2.13, 2.14 and main. Backends with other names keep the methods of their base class.
"""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.cuda_missing import not_simulated

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from plimsoll.torch.simulated.ranks.communicators import Communicators

_WHERE = "torch.distributed"
_SILENT = (
    "_add_ephemeral_timeout",
    "_group_end",
    "_group_start",
    "_set_default_timeout",
    "deregister_mem_pool",
    "perform_nocolor_split",
    "register_mem_pool",
    "set_timeout",
)
"""Methods that do nothing here, because they affect neither memory nor values."""
_REFUSED = (
    "_comm_ptr",
    "_end_time_estimate",
    "_start_time_estimate",
    "_verify_work_timeout",
)
"""Methods that raise NotImplementedError, because only the real NCCL knows their results."""
_REFUSED_PROPERTIES = ("bound_device_id", "uid")


def name_methods(c10d: ModuleType, communicators: Communicators) -> None:
    """Gives the backends "nccl" and "gloo" the methods that their classes in PyTorch have.

    The methods are set on the base class `Backend`, but only backends with these names see them.

    Args:
        c10d: `torch._C._distributed_c10d`.
        communicators: The communicators of NCCL in this process.
    """
    both, nccl = ("nccl", "gloo"), ("nccl",)
    methods: dict[str, Callable[..., Any]] = {
        "_is_initialized": lambda _: bool(communicators.most),
        "_shutdown": lambda backend: backend.shutdown(),
        "comm_split_count": lambda _: 0,
        "get_error": lambda _: c10d.ErrorType.SUCCESS,
        **{name: not_simulated(f"ProcessGroupNCCL.{name}", _WHERE) for name in _REFUSED},
        **dict.fromkeys(_SILENT, _do_nothing),
    }
    for name, method in methods.items():
        names = both if name in ("_set_default_timeout", "set_timeout") else nccl
        setattr(c10d.Backend, name, _Method(c10d.Backend, name, method, names))
    for name in _REFUSED_PROPERTIES:
        refuse = property(not_simulated(f"ProcessGroupNCCL.{name}", _WHERE))
        setattr(c10d.Backend, name, _Method(c10d.Backend, name, refuse, nccl))


def _do_nothing(*_: Any, **__: Any) -> None:
    """Replaces each method in `_SILENT`."""


class _Method:
    """A method or property of the named backends.

    Other backends get the base class's own attribute of this name, if there is one.
    """

    def __init__(self, base: type, name: str, own: Any, backends: tuple[str, ...]) -> None:
        self._name = name
        self._own = own
        self._backends = backends
        self._others = getattr(base, name, None)

    def __get__(self, backend: Any, kind: type | None = None) -> Any:
        if backend is None:
            return self
        found = self._own if _name_of(backend) in self._backends else self._others
        if found is None:
            raise AttributeError(
                f"{type(backend).__name__!r} object has no attribute {self._name!r}"
            )
        if hasattr(found, "__get__"):
            return found.__get__(backend, kind)
        return MethodType(found, backend)


def _name_of(backend: Any) -> str | None:
    try:
        return str(backend.name())
    except RuntimeError:  # PyTorch's error for a backend without a name
        return None
