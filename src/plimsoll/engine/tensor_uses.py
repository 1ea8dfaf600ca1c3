"""Finds the parameters, gradients and optimizer state among a program's tensors.

Hooks note a module when it gets a parameter or a buffer, and when it is moved, copied or loaded.
Hooks examine the tensors of the module at that moment, gradients after each backward pass, and the
tensors of an optimizer before and after each of its steps. `look` examines all known modules. So
parameters that were replaced or sharded, or whose module is never called, are found too. A leaf of
autograd that belongs to no module is found when it takes part in two of the backward passes that
are examined. These are the passes 1, 2, 4, 8 and so on.
"""

from __future__ import annotations

import gc
import importlib
import sys
import weakref
from typing import TYPE_CHECKING, Any

from plimsoll.base.watchers import Watchers, outside_compilers, standing_in
from plimsoll.engine.storages import storage_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType


class TensorUses:
    """Follows the modules and optimizers of a program.

    Args:
        watchers: The guard that keeps errors in this class's hooks from reaching the program.
        tell: Called with the device, the address and the category of each tensor that is new or
            has a new address.
        after_step: Called with each optimizer after its step.
    """

    def __init__(
        self,
        watchers: Watchers,
        tell: Callable[[int, int, str], None],
        *,
        after_step: Callable[[Any], object] = lambda _: None,
    ) -> None:
        guarded = watchers.guarded
        self._watch = guarded("modules and optimizers", self._install)
        self._look_again = guarded("the tensors of modules", self._look)
        self._look_at_module = guarded("the tensors of a module", self._note_module)
        self._look_at_all = guarded("the tensors of the program", self._find_all)
        self._look_before_step = guarded("the tensors of optimizers", self._before_step)
        self._look_after_step = guarded("the state of optimizers", self._after)
        self._look_at_gradients = guarded("gradients after a backward pass", self._note_gradients)
        self._look_at_leaves = guarded("the leaves of a backward pass", self._note_leaves)
        self._tell = tell
        self._step_ends = after_step
        self._modules: dict[int, weakref.ref[Any]] = {}
        self._parameters: dict[int, weakref.ref[Any]] = {}
        # Leaves that a backward pass has reached, and that were not in `_parameters` at that time.
        self._leaves: dict[int, weakref.ref[Any]] = {}
        self._backward_passes = 0
        # For each reported tensor, by its `id`: the tensor, and the address that was reported.
        self._said: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._torch: Any = None

    def install(self, torch: ModuleType) -> None:
        """Installs hooks that follow all modules and optimizers, existing and future ones."""
        self._watch(torch)

    def look(self) -> None:
        """Examines all tensors and gradients of all known modules now."""
        self._look_again()

    def tell_all(self, torch: ModuleType) -> None:
        """Searches the whole program for modules and optimizers, and reports their tensors.

        Tensors that were reported before are reported again.
        """
        self._torch = torch
        self._said.clear()
        self._look_at_all()

    def before_step(self, optimizer: Any, *_: Any) -> None:
        """Reports those parameters and gradients of an optimizer that are new."""
        self._look_before_step(optimizer)

    def after_step(self, optimizer: Any, *_: Any) -> None:
        """Calls the `after_step` function that `__init__` got, then reports new state tensors."""
        self._step_ends(optimizer)
        self._look_after_step(optimizer)

    def _install(self, torch: Any) -> None:
        self._torch = torch
        note = self.note_module
        module = importlib.import_module("torch.nn.modules.module")

        (registered,) = outside_compilers(torch, lambda owner, _, tensor: note(owner, [tensor]))
        module.register_module_parameter_registration_hook(registered)
        module.register_module_buffer_registration_hook(registered)
        for name in ("_apply", "__setstate__"):
            _call_after(torch.nn.Module, name, note)
        optimizer = importlib.import_module("torch.optim.optimizer")
        before, after = outside_compilers(torch, self.before_step, self.after_step)
        optimizer.register_optimizer_step_pre_hook(before)
        optimizer.register_optimizer_step_post_hook(after)
        _call_before(torch.autograd, "backward", self._look_at_leaves)
        _call_after(torch.autograd, "backward", lambda _: self._look_at_gradients())
        self._find_all()

    def _find_all(self) -> None:
        """Finds the modules and optimizers that exist already."""
        for found in gc.get_objects():
            if issubclass(type(found), self._torch.nn.Module):
                self._note_module(found)
            elif issubclass(type(found), self._torch.optim.Optimizer):
                self._before_step(found)
                self._after(found)
        self._note_gradients()

    def note_module(self, module: Any, tensors: Iterable[Any] | None = None) -> None:
        """Starts to follow a module, and reports `tensors`.

        The default for `tensors` is all parameters and buffers of the module, without submodules.
        """
        self._look_at_module(module, tensors)

    def _note_module(self, module: Any, tensors: Iterable[Any] | None = None) -> None:
        known = self._modules.get(id(module))
        if known is None or known() is not module:
            self._modules[id(module)] = weakref.ref(module)
        for tensor in _own_tensors(module) if tensors is None else tensors:
            self._note_parameter(tensor)

    def _note_parameter(self, tensor: Any) -> None:
        if tensor is None or self._torch.nn.parameter.is_lazy(tensor):
            return
        if tensor.requires_grad:
            known = self._parameters.get(id(tensor))
            if known is None or known() is not tensor:
                self._parameters[id(tensor)] = weakref.ref(tensor)
        self._note(tensor, "parameters")

    def _look(self) -> None:
        for module in _living(self._modules):
            for tensor in _own_tensors(module):
                self._note_parameter(tensor)
        self._note_gradients()

    def _note_gradients(self) -> None:
        for owners in (self._parameters, self._leaves):
            for owner in _living(owners):
                self._note_gradient(owner)

    def _note_leaves(self, roots: Any) -> None:
        """Finds the leaves that get gradients in a backward pass which is about to begin.

        A leaf that several passes reach is a parameter, although it may belong to no module: an
        input of one pass gets a gradient only once. Only the passes 1, 2, 4, 8 and so on are
        examined, because an examination takes time.
        """
        self._backward_passes += 1
        if self._backward_passes & (self._backward_passes - 1):
            return
        for leaf in _leaves_below(roots):
            known = self._parameters.get(id(leaf))
            if known is not None and known() is leaf:
                continue
            seen = self._leaves.get(id(leaf))
            if seen is not None and seen() is leaf:
                self._note_parameter(leaf)
            else:
                self._leaves[id(leaf)] = weakref.ref(leaf)

    def _note_gradient(self, parameter: Any) -> None:
        for name in ("grad", "main_grad"):  # Megatron uses main_grad
            gradient = getattr(parameter, name, None)
            if gradient is not None:
                self._note(gradient, "gradients")

    def _before_step(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._note_parameter(parameter)
                self._note_gradient(parameter)

    def _after(self, optimizer: Any) -> None:
        for tensor in _tensors(optimizer.state):
            self._note(tensor, "optimizer_state")

    def _note(self, tensor: Any, category: str) -> None:
        for part in _parts(tensor):
            address = storage_address(part)
            if not address or not part.is_cuda:
                continue
            known = self._said.get(id(part))
            if known is not None and known[0]() is part and known[1] == address:
                continue
            self._said[id(part)] = weakref.ref(part), address
            self._tell(part.device.index, address, category)


def labels_now() -> dict[str, dict[str, list[int]]]:
    """Finds the tensors of this process's modules and optimizers at this moment.

    Errors are never raised.

    Returns:
        Addresses by category and device number, as a snapshot's settings have them under "labels".
        Empty if PyTorch is not imported.
    """
    found: dict[str, dict[str, list[int]]] = {}

    def tell(device: int, address: int, category: str) -> None:
        found.setdefault(category, {}).setdefault(str(device), []).append(address)

    torch = sys.modules.get("torch")
    if torch is not None:
        TensorUses(Watchers(), tell).tell_all(torch)
    return found


def _call_after(owner: Any, name: str, action: Callable[[Any], object]) -> None:
    """Wraps a function of PyTorch: after each call, `action` gets the call's first argument."""
    original = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        result = original(*arguments, **named)
        action(arguments[0] if arguments else None)
        return result

    setattr(owner, name, standing_in(original, call))


def _call_before(owner: Any, name: str, action: Callable[[Any], object]) -> None:
    """Wraps a function of PyTorch: before each call, `action` gets the call's first argument."""
    original = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        action(arguments[0] if arguments else named.get("tensors"))
        return original(*arguments, **named)

    setattr(owner, name, standing_in(original, call))


def _leaves_below(roots: Any) -> Iterator[Any]:
    """Yields the tensors that get a gradient in a backward pass from `roots`."""
    several = roots if isinstance(roots, list | tuple) else [roots]
    left = [getattr(root, "grad_fn", None) for root in several]
    seen = set()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "AccumulateGrad":
            yield node.variable
        left += [following for following, _ in node.next_functions]


def _living(references: dict[int, weakref.ref[Any]]) -> Iterator[Any]:
    """Yields the objects that still exist. Removes the entries of deleted objects."""
    for key, reference in list(references.items()):
        found = reference()
        if found is None:
            del references[key]
        else:
            yield found


def _own_tensors(module: Any) -> Iterator[Any]:
    """Yields a module's own parameters and buffers; none before its `__init__` has run."""
    for name in ("_parameters", "_buffers"):
        yield from list(getattr(module, name, {}).values())


def _parts(tensor: Any) -> Iterator[Any]:
    """Yields the plain tensors inside a tensor subclass, such as those of a DTensor."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        yield getattr(tensor, "_local_tensor", tensor)
        return
    for name in flatten()[0]:  # skips what is no tensor, such as a DTensor's mesh
        if hasattr(getattr(tensor, name), "untyped_storage"):
            yield from _parts(getattr(tensor, name))


_DEEPEST = 4


def _tensors(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yields the tensors in nested dictionaries, lists and tuples, down to `_DEEPEST` levels."""
    if hasattr(value, "untyped_storage"):
        yield value
    elif depth < _DEEPEST and isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each, depth + 1)
    elif depth < _DEEPEST and isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each, depth + 1)
