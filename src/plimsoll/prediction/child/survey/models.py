"""Notes the models that a script trains: their names in the script, and their settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plimsoll.offloading.training.wrappers import is_wrapper, plain_name, unwrapped
from plimsoll.prediction.child.survey.calls import addresses
from plimsoll.prediction.child.survey.own_bytes import own_bytes
from plimsoll.prediction.child.survey.places import place_of, script_frames
from plimsoll.prediction.survey import ModelCall, ModelUse
from plimsoll.torch.simulated.program_frames import variables_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType, ModuleType

_MOST_ATTRIBUTES = 200


class Models:
    """Notes each outermost module that the script calls while autograd records."""

    def __init__(self) -> None:
        self._models: dict[int, tuple[Any, ModelUse]] = {}
        self._outermost = 0

    def note(self, torch: ModuleType, module: Any, given: Iterable[Any]) -> None:
        """Notes an outermost module as a model, at its first call with initialized parameters.

        A module without trainable parameters is no model.
        """
        self._outermost = id(module)
        if id(module) in self._models or any(map(torch.nn.parameter.is_lazy, module.parameters())):
            return
        if any(p.requires_grad for p in module.parameters()):
            self._models[id(module)] = module, _use(torch, module, list(given))

    def note_inner(self, torch: ModuleType) -> None:
        """Notes an autocast, such as Accelerate's, that begins inside the outermost module."""
        module, use = self._models.get(self._outermost, (None, None))
        if use is not None and use.autocast is None and (kind := _autocast(torch)) is not None:
            self._models[self._outermost] = module, replace(use, autocast=kind)

    def uses(self) -> list[tuple[Any, ModelUse]]:
        """Returns the noted models, each with its `ModelUse`."""
        return list(self._models.values())


def _use(torch: ModuleType, module: Any, given: list[Any]) -> ModelUse:
    batch = _batch(given)
    storages = set(addresses(given))
    frames = list(script_frames())
    parts = list(module.modules())
    own = unwrapped(module)
    config = getattr(own, "config", None)
    return ModelUse(
        kind=f"{type(own).__module__}.{type(own).__qualname__}",
        names=list(_names(module, frames)),
        calls=[_call(torch, frame, batch, storages) for frame in reversed(frames)],
        batch=batch,
        is_transformers=_is_transformers(own),
        attention=getattr(config, "_attn_implementation", None) if _is_transformers(own) else None,
        has_batch_statistics=any(_uses_batch(torch, each) for each in parts),
        has_dropout=any(_draws(torch, each) for each in parts),
        autocast=_autocast(torch),
        parameter_types=_types(module),
        blocks=list(_blocks(own)),
        is_wrapped=own is not module,
    )


def _is_transformers(module: Any) -> bool:
    return any(kind.__name__ == "PreTrainedModel" for kind in type(module).__mro__)


def _uses_batch(torch: ModuleType, module: Any) -> bool:
    return isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.training


def _draws(torch: ModuleType, module: Any) -> bool:
    kind = torch.nn.modules.dropout._DropoutNd
    return isinstance(module, kind) and module.training and module.p > 0


def _autocast(torch: ModuleType) -> str | None:
    if not torch.is_autocast_enabled("cuda"):
        return None
    return str(torch.get_autocast_dtype("cuda")).removeprefix("torch.")


def _types(module: Any) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for parameter in module.parameters():
        if parameter.is_cuda:
            sizes[str(parameter.dtype).removeprefix("torch.")] += own_bytes(parameter)
    return dict(sizes)


def _blocks(model: Any) -> Iterator[str]:
    """Yields the names of the model's lists of layers.

    The modules in such a list have the same class. A list inside another list is left out.
    """
    found: list[str] = []
    for name, module in model.named_modules():
        is_inside = any(not outer or name.startswith(f"{outer}.") for outer in found)
        if not is_inside and _are_layers(module):
            found.append(name)
            yield plain_name(name)


def _are_layers(module: Any) -> bool:
    if type(module).__name__ not in ("ModuleList", "Sequential"):
        return False
    parts = [unwrapped(part) for part in module.children()]
    are_trained = all(next(part.parameters(), None) is not None for part in parts)
    return len(parts) > 1 and len({type(part) for part in parts}) == 1 and are_trained


def _names(module: Any, frames: list[FrameType]) -> Iterator[tuple[str, str, str]]:
    """Yields the variables and attributes that hold the model, with or without its wrapper.

    The variables of the outermost function come first. Each tuple has three names: the variable,
    its function, and the module that the variable holds, as a path within `module`.
    """
    inside = {id(part): path for path, part in module.named_modules()}
    wrapped = {id(module): ""}
    part = module
    while is_wrapper(part):
        part = part.module
        wrapped[id(part)] = inside[id(part)]
    for frame in reversed(frames):
        function = frame.f_code.co_qualname
        for name, value in variables_of(frame).items():
            if id(value) in wrapped:
                yield name, function, wrapped[id(value)]
            elif isinstance(getattr(value, "__dict__", None), dict) and not isinstance(value, type):
                for attribute, held in list(vars(value).items())[:_MOST_ATTRIBUTES]:
                    if id(held) in wrapped:
                        yield f"{name}.{attribute}", function, wrapped[id(held)]


def _call(torch: ModuleType, frame: FrameType, batch: int | None, storages: set[int]) -> ModelCall:
    tensors, mappings = [], []
    for name, value in variables_of(frame).items():
        if not name.isidentifier():
            continue
        if isinstance(value, torch.Tensor):
            if _is_batch(torch, value, batch):
                tensors.append(name)
        elif isinstance(value, Mapping) and value and name != "__builtins__":
            parts = [part for part in value.values() if isinstance(part, torch.Tensor)]
            if (
                parts
                and all(_is_batch(torch, part, batch) for part in parts)
                and (storages & set(addresses(parts)))
            ):
                mappings.append(name)
    return ModelCall(place_of(frame), tensors, mappings)


def _is_batch(torch: ModuleType, value: Any, batch: int | None) -> bool:
    """Returns whether a tensor has a row for each sample of the batch, and needs no gradient."""
    if isinstance(value, torch.nn.Parameter) or value.requires_grad:
        return False
    return batch is not None and value.dim() > 0 and value.shape[0] == batch


def _batch(given: list[Any]) -> int | None:
    shapes = (getattr(each, "shape", None) for each in given)
    return next((int(shape[0]) for shape in shapes if isinstance(shape, tuple) and shape), None)
