"""Stands in for DeepGEMM's matrix products. The stand-ins use memory and time, but compute nothing.

DeepGEMM's functions write to tensors that the caller made. According to the source of 2.1 they
allocate only two things. One is a workspace for cuBLASLt, which is never freed. The other is a copy
of the scales. It is made if the kernels cannot read the scales in the layout that the caller chose.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.libraries.operations import simulate_operation
from plimsoll.torch.simulated.libraries.source_kernels import note_kernel

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_LIBRARY, _RELEASE = "deep_gemm", "DeepGEMM 2.1"
_WORKSPACE_BYTES = 32 << 20
_SCALES_ALIGNED = 4
"""The number of rows of scales is rounded up to a multiple of this."""
_SCALES_OF_PACK = 4
_ATTENTION = ("mqa_logits", "mega_moe", "hc_prenorm_gemm")
"""Parts of the names of functions that plimsoll refuses.

These functions do more than a plain matrix product.
"""


def stand_in_for_products(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads DeepGEMM's compiled module, and replaces its functions."""
    execute()
    settings = _Settings()
    for name in _SETTINGS:
        setattr(module, f"get_{name}", functools.partial(settings.get, name))
        setattr(module, f"set_{name}", functools.partial(settings.set, name))
    for name in dir(module):
        if any(part in name for part in _ATTENTION):
            setattr(module, name, functools.partial(_refuse, name))
        elif name.endswith("einsum"):
            setattr(module, name, functools.partial(_einsum, settings))
        elif "_gemm_" in name:
            setattr(module, name, functools.partial(_multiply, settings, name))
    module.get_mn_major_tma_aligned_tensor = _laid_out  # type: ignore[attr-defined]
    module.get_mn_major_tma_aligned_packed_ue8m0_tensor = _packed  # type: ignore[attr-defined]
    module.transform_sf_into_required_layout = functools.partial(  # type: ignore[attr-defined]
        _required_layout, settings
    )


def stand_in_for_operations(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads a DeepGEMM that registers its functions with PyTorch, and replaces these functions."""
    import torch

    execute()
    del module
    settings = _Settings()
    for schema in torch._C._jit_get_all_schemas():
        library, _, name = schema.name.partition("::")
        if library != _LIBRARY:
            continue
        kernel = _kernel_of(settings, name, [argument.name for argument in schema.arguments])
        has_tensors = any(str(argument.type) == "Tensor" for argument in schema.arguments)
        if kernel is not None:
            on = "CUDA" if has_tensors else "CompositeImplicitAutograd"
            simulate_operation(schema.name, kernel, on=on)


def _kernel_of(settings: _Settings, name: str, arguments: list[str]) -> Callable[..., Any] | None:
    """Returns the function that replaces an operation; None if the operation needs no GPU."""
    verb, _, setting = name.partition("_")
    if setting in _SETTINGS:
        return functools.partial(getattr(settings, verb), setting)
    if any(part in name for part in _ATTENTION):
        return functools.partial(_refuse, name)
    if name == "get_mn_major_tma_aligned_tensor":
        return _laid_out
    if name == "get_mn_major_tma_aligned_packed_ue8m0_tensor":
        return lambda scales, *_: _packed(scales)
    if name == "transform_sf_into_required_layout":
        return lambda sf, mn, k, *recipe_and_more: _required_layout(
            settings, sf, mn, k, tuple(n for n in recipe_and_more[:3] if n), *recipe_and_more[3:6]
        )
    if not name.endswith("einsum") and "_gemm_" not in name:
        return None

    def multiply(*values: Any) -> None:
        given = dict(zip(arguments, values, strict=False))
        a, b = (
            (given.get(each, given.get(f"{each}_data")), given.get(f"{each}_sf"))
            for each in ("a", "b")
        )
        operands = [each if each[1] is not None else each[0] for each in (a, b)]
        if "expr" in given:
            _einsum(settings, given["expr"], *operands, given["d"])
        else:
            _multiply(settings, name, *operands, given["d"])

    return multiply


_SETTINGS = {"num_sms": None, "tc_util": 100, "pdl": False}
"""The library's settings with their default values.

None means the number of the card's multiprocessors.
"""


class _Settings:
    """The settings and the workspace that the library keeps for a process."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._workspace: Any = None

    def use(self) -> None:
        """Allocates the workspace at the first call; the library never frees it."""
        import torch

        if self._workspace is None:
            self._workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")

    def get(self, name: str) -> Any:
        import torch

        self.use()
        processors = torch.cuda.get_device_properties(None).multi_processor_count
        return self._values.get(name) or (processors if name == "num_sms" else _SETTINGS[name])

    def set(self, name: str, value: Any) -> None:
        self.use()
        self._values[name] = value


def _refuse(name: str, *_: Any, **__: Any) -> None:
    raise NotImplementedError(f"plimsoll does not simulate DeepGEMM's {name}")


def _multiply(settings: _Settings, name: str, a: Any, b: Any, d: Any, *_: Any, **__: Any) -> None:
    """Launches a matrix product.

    In a grouped product, data decides the sizes of the groups. plimsoll makes all groups equal.
    """
    settings.use()
    is_of_bytes = isinstance(a, tuple)
    left, right = (each[0] if isinstance(each, tuple) else each for each in (a, b))
    scales = _as_kernels_read(a[1]) if is_of_bytes else None
    rows, columns = d.shape[-2:]
    groups = right.shape[0] if right.dim() == 3 else d.shape[0] if d.dim() == 3 else 1
    form = name.split("_gemm_")[1]
    terms = left.shape[-1] if form.startswith("n") else left.shape[-2]
    if name.startswith("k_grouped"):
        terms /= groups
    elif d.dim() == 2:
        rows /= groups
    _launch(d, [groups, rows, columns, terms], is_of_bytes=is_of_bytes)
    del scales


def _einsum(settings: _Settings, expr: str, a: Any, b: Any, d: Any, *_: Any, **__: Any) -> None:
    settings.use()
    is_of_bytes = isinstance(a, tuple)
    left, right = (each[0] if isinstance(each, tuple) else each for each in (a, b))
    operands, result = expr.replace(" ", "").split("->")
    sizes: dict[str, int] = {}
    for letters, tensor in zip(operands.split(","), (left, right), strict=True):
        sizes.update(zip(letters, tensor.shape, strict=True))
    terms = 1
    for letter in set(sizes) - set(result):
        terms *= sizes[letter]
    columns = d.shape[-1]
    _launch(d, [1, d.numel() / max(columns, 1), columns, terms], is_of_bytes=is_of_bytes)


def _launch(made: Any, sizes: list[float], *, is_of_bytes: bool) -> None:
    import torch

    note_kernel(_LIBRARY, _RELEASE)
    batch, *others = sizes
    # Each launch is simulated at the speed of float16. GPUs multiply 8-bit numbers twice as fast.
    # To get half the time for 8-bit numbers, plimsoll halves the batch.
    batch = batch / 2 if is_of_bytes else batch
    torch.ops.plimsoll.launch_product([made], [batch, *others], torch.half)


def _laid_out(scales: Any) -> Any:
    """Returns the scales if each column is contiguous and padded.

    Otherwise returns a new tensor that has this layout. Its values are not computed.
    """
    import torch

    *batch, rows, columns = scales.shape
    aligned = -(-rows // _SCALES_ALIGNED) * _SCALES_ALIGNED
    strides = (*([aligned * columns] if batch else []), 1, aligned)
    if scales.stride() == strides:
        return scales
    return torch.empty_strided(scales.shape, strides, dtype=scales.dtype, device=scales.device)


def _packed(scales: Any) -> Any:
    """Allocates a tensor for packed scales: each of its 32-bit numbers has room for four scales."""
    import torch

    columns = -(-scales.shape[-1] // _SCALES_OF_PACK)
    shape = (*scales.shape[:-1], columns)
    layout = _laid_out(torch.empty(shape, dtype=torch.int32, device="meta"))
    return scales.new_empty_strided(shape, layout.stride(), dtype=torch.int32)


def _as_kernels_read(scales: Any) -> Any:
    import torch

    major, _ = torch.cuda.get_device_capability(scales.device)
    if scales.dtype != torch.float32:
        return scales
    return _laid_out(scales) if major == 9 else _packed(scales)


def _required_layout(
    settings: _Settings,
    sf: Any,
    mn: int,
    k: int,
    recipe: tuple[int, ...],
    num_groups: int | None = None,
    is_sfa: bool | None = None,
    disable_ue8m0_cast: bool = False,
) -> Any:
    """Returns scales in the layout that the card's kernels read; copies them if necessary."""
    import torch

    del k, num_groups
    settings.use()
    of_rows = recipe[0] if len(recipe) == 2 or is_sfa else recipe[1]
    major, _ = torch.cuda.get_device_capability(sf.device)
    if sf.dtype != torch.float32:
        return sf
    if major == 9 or disable_ue8m0_cast:
        return sf if of_rows > 1 else _laid_out(sf)
    if of_rows > 1:
        sf = sf.index_select(-2, torch.arange(mn, device=sf.device) // of_rows)
    return _packed(sf)
