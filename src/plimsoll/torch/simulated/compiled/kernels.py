"""Triton's kernels on simulated GPUs: a launch takes memory and time, and computes nothing.

`triton.compile` makes every kernel: the program's own kernels and those of Inductor. plimsoll
replaces this function with one whose kernels compute nothing. plimsoll compiles a kernel beyond
Triton's IR only in two cases. If the kernel makes tensor descriptors on the device, plimsoll needs
the size of its scratch memory. If Inductor or the program may decide by the number of a thread's
registers, plimsoll needs that number. For example, Inductor halves the blocks of a reduction whose
threads need many registers.
"""

from __future__ import annotations

import hashlib
from collections import Counter, namedtuple
from functools import cached_property
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.chips import chip_of
from plimsoll.torch.simulated.compiled.asserted import Assertions, UndecidedError, assertions_of
from plimsoll.torch.simulated.compiled.assumptions import assume
from plimsoll.torch.simulated.compiled.lowering import Lowering, Registers
from plimsoll.torch.simulated.compiled.settings import is_generated
from plimsoll.torch.simulated.compiled.stores import stored_arguments
from plimsoll.torch.simulated.compiled.templates import (
    OPERANDS,
    bytes_of,
    multiplied,
    template_of,
)
from plimsoll.torch.simulated.library import UNDECIDED_CHECK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from types import ModuleType

_ASSUMED = Registers(used=32, spilled=0)
"""The assumed registers of a thread, for kernels whose number of registers decides nothing."""
_MOST_THREADS = 1024
"""The most threads of a block."""
_SHARED = 1024
"""The assumed on-chip shared memory of a block, in bytes; not 0, because programs divide by it."""
_DESCRIBES_TENSORS = ("make_tensor_descriptor", "tensormap_create")
_FITS = "plimsoll assumes that none of the program's own kernels is too large for the card"
_WRITTEN = ("out_ptr", "in_out_ptr", "ws_ptr")
"""The beginnings of Inductor's names for the arguments that a kernel writes."""
_OF_INDUCTOR = (*_WRITTEN, "in_ptr", "arg_")
"""The beginnings of Inductor's names for all arguments."""
_OF_LOOPED_REDUCTION = "R0_BLOCK"
"""The argument that marks reductions whose blocks Inductor may halve to save registers."""
_TRIED_FUSION = "triton_"
"""The name of a kernel that Inductor compiles to try a fusion.

If the kernel's threads spill registers, Inductor does not fuse.
"""


class KernelCounts:
    """Counts the launches of Triton's kernels.

    Attributes:
        launches: The number of launches, by the kernel's name.
        own: The names of the program's own kernels.
    """

    def __init__(self) -> None:
        self.launches: Counter[str] = Counter()
        self.own: set[str] = set()


def simulate_kernels(
    counts: KernelCounts,
    folder: Callable[[], Path],
    module: ModuleType,
    execute: Callable[[], None],
) -> None:
    """Loads `triton`, with a compiler whose kernels compute nothing.

    Args:
        counts: Counts the launches.
        folder: A function that returns the folder for the properties of compiled kernels.
        module: `triton`.
        execute: Executes the module's code.
    """
    execute()
    compiler: Any = module.compiler.compiler

    def compile(  # noqa: A001  as Triton calls it
        src: Any, target: Any = None, options: dict[str, Any] | None = None, **_: Any
    ) -> Any:
        target = target or module.runtime.driver.active.get_current_target()
        backend = compiler.make_backend(target)
        if not isinstance(src, compiler.ASTSource):
            raise NotImplementedError(
                "plimsoll does not simulate a kernel that is given in Triton's intermediate "
                "language: launch the @triton.jit function instead"
            )
        parsed = backend.parse_options({**(options or {}), **src.parse_options()})
        metadata = {"target": target, **parsed.__dict__, "name": src.name, "shared": _SHARED}
        metadata |= {"global_scratch_size": 0, "profile_scratch_size": 0, "tmem_size": 0}
        written = {name for name in src.fn.arg_names if str(name).startswith(_WRITTEN)}
        lowering = Lowering(src, target, backend, parsed, compiler)
        if not _is_inductors(src.fn):
            counts.own.add(src.name)
            parts, written = _checked(src, lowering, compiler.ir)
            metadata |= parts
        assume("triton", _FITS)
        return SimulatedKernel(src, metadata, written, counts, module, lowering, folder)

    def tune(_: Any, __: Any, ___: Any, benchmark: Callable[[], None]) -> bool:
        """Always benchmarks: Triton's cache folder may hold the results of runs on a real GPU."""
        benchmark()
        return False

    tuner = module.runtime.autotuner.Autotuner
    if hasattr(tuner, "check_disk_cache"):
        tuner.check_disk_cache = tune
    places: tuple[Any, ...] = (module, module.compiler, compiler)
    for place in places:
        place.compile = compile


def _is_inductors(function: Any) -> bool:
    """Returns whether Inductor generated this kernel, rather than copied it from the program.

    The names of the kernel's arguments show this. The file alone does not, because Inductor's files
    also contain the program's own kernels.
    """
    code = getattr(getattr(function, "fn", None), "__code__", None)
    if code is None or not is_generated(str(code.co_filename)):
        return False
    return any(str(name).startswith(_OF_INDUCTOR) for name in function.arg_names)


def _checked(src: Any, lowering: Lowering, ir: Any) -> tuple[dict[str, Any], set[str]]:
    """Compiles a kernel to learn its errors, the arguments that it writes, and its scratch memory.

    Returns:
        The properties of the scratch memory, and the names of the arguments that the kernel writes
        (empty if unknown).

    Raises:
        CompilationError: Triton's error for a kernel that does not compile.
    """
    module, context = lowering.parsed()
    _inline(ir, context, module)
    written = _named(src, stored_arguments(str(module)))
    if not any(name in src.fn.src for name in _DESCRIBES_TENSORS):
        return {}, written
    _, metadata = lowering.until("ptx", "cubin")
    scratch = ("global_scratch_size", "global_scratch_align")
    return {name: metadata[name] for name in scratch if name in metadata}, written


def _inline(ir: Any, context: Any, module: Any) -> None:
    """Inlines the functions that a kernel calls, such as `tl.sum`."""
    from triton._C.libtriton import passes

    manager = ir.pass_manager(context)
    passes.common.add_inliner(manager)
    passes.common.add_symbol_dce(manager)
    try:
        manager.run(module, "inline")
    except TypeError:  # up to Triton 3.5, `run` takes no name
        manager.run(module)


def _named(src: Any, numbers: set[int] | None) -> set[str]:
    """Returns the names of the kernel's arguments at these positions; empty if unknown.

    A position is an index into the list of the arguments that are not constant (`constexpr`).
    """
    names = [name for name, kind in src.signature.items() if kind != "constexpr"]
    if numbers is None or max(numbers) >= len(names):
        return set()
    return {names[number] for number in numbers}


class NoCode:
    """Stands in for a kernel's compiled code; reading it raises NotImplementedError."""

    def __getitem__(self, kind: str) -> str:
        raise NotImplementedError(f"plimsoll loads no code of kernels, so there is no {kind} here")


class SimulatedKernel:
    """Stands in for a compiled kernel: has the members that Triton and Inductor use."""

    asm = NoCode()
    function = 0
    module = None
    n_max_threads = _MOST_THREADS

    def __init__(
        self,
        src: Any,
        metadata: dict[str, Any],
        written: set[str],
        counts: KernelCounts,
        triton: ModuleType,
        lowering: Lowering,
        folder: Callable[[], Path],
    ) -> None:
        self.src = src
        self.name = str(src.name)
        text = (src.hash(), sorted(map(str, metadata.items())))
        self.hash = hashlib.sha256(repr(text).encode()).hexdigest()
        metadata = {**metadata, "hash": self.hash}
        self.metadata: Any = namedtuple("KernelMetadata", sorted(metadata))(**metadata)
        self.packed_metadata = ()
        self._counts = counts
        self._triton = triton
        self._writes = written
        self._lowering = lowering
        self._folder = folder
        self._template = template_of(src.fn.src, self.metadata) if self._is_generated else None

    @property
    def n_regs(self) -> int:
        """Registers of a thread."""
        return self._registers.used

    @property
    def n_spills(self) -> int:
        """Spilled registers of a thread, in words."""
        return self._registers.spilled

    @property
    def _is_generated(self) -> bool:
        code = getattr(self.src.fn.fn, "__code__", None)
        return code is not None and is_generated(str(code.co_filename))

    @cached_property
    def _registers(self) -> Registers:
        """The registers of a thread.

        For most of Inductor's kernels, no decision depends on the number of registers. For these
        kernels, plimsoll uses `_ASSUMED`. plimsoll compiles any other kernel to learn the number.
        """
        function = self.src.fn
        is_fusion = self._template is not None and function.__name__ == _TRIED_FUSION
        if self._is_generated and not is_fusion and _OF_LOOPED_REDUCTION not in function.arg_names:
            return _ASSUMED
        try:
            return self._lowering.registers(self._folder() / "registers" / f"{self.hash}.json")
        except Exception as error:  # any error of Triton's compiler and NVIDIA's tools
            assume("triton", f"registers of {self.name}: {_first_line(error)}; none spills")
            return _ASSUMED

    def _init_handles(self) -> None:
        """Refuses a kernel whose blocks need more on-chip shared memory than the card has.

        Only kernels that Inductor made from a template are checked. Triton calls this method to
        load a kernel's code, but a simulated kernel has no code.

        Raises:
            OutOfResources: Triton's error, if the blocks are too large for the card.
        """
        if self._template is None:
            return
        kinds = [str(kind) for name, kind in self.src.signature.items() if name in OPERANDS]
        needed = self._template.shared_bytes(
            bytes_of(kinds[0] if kinds else ""), chip_of(divmod(self.metadata.target.arch, 10))
        )
        most = self._triton.runtime.driver.active.utils.get_device_properties(0)["max_shared_mem"]
        if needed > most:
            errors = self._triton.runtime.errors
            raise errors.OutOfResources(needed, most, "shared memory")

    def launch_metadata(self, grid: Any, stream: int, *args: Any) -> Any:
        """Returns Triton's data for the hooks of a launch; None without hooks."""
        if not self._hooks()[0]:
            return None
        lazy = self._triton.compiler.LazyDict(
            {"name": self.name, "function": self.function, "stream": stream}
        )
        if self.src.fn.launch_metadata is not None:
            named = dict(zip(self.src.fn.arg_names, args, strict=False))
            lazy.add(self.src.fn.launch_metadata, (grid, self.metadata, named))
        return lazy

    def _hooks(self) -> tuple[Any, Any]:
        knobs = self._triton.knobs.runtime
        return knobs.launch_enter_hook, knobs.launch_exit_hook

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., None]:
        sizes = (*grid, 1, 1)[:3]

        def run(*args: Any, stream: int | None = None) -> None:
            metadata = self.launch_metadata(grid, stream or 0, *args)
            self.run(*sizes, stream, 0, (), metadata, *self._hooks(), *args)

        return run

    def run(
        self,
        grid_0: int,
        grid_1: int,
        grid_2: int,
        stream: int | None,
        function: Any,  # noqa: ARG002
        packed_metadata: Any,  # noqa: ARG002
        launch_metadata: Any,
        launch_enter_hook: Any,
        launch_exit_hook: Any,
        *args: Any,
    ) -> None:
        """Launches the kernel on the current stream, with scratch memory if it needs any."""
        import torch

        if launch_enter_hook:
            launch_enter_hook(launch_metadata)
        programs = grid_0 * grid_1 * grid_2
        if programs > 0:
            scratch = self._take_scratch(programs, stream)
            product, tile, kind = self._multiplied(args)
            moved = float(sum(tensor.nbytes for tensor in _tensors(args)))
            self._check(args)
            with torch._C._DisableTorchDispatch():  # no dispatch mode sees a launch
                torch.ops.plimsoll.launch(self._written(args), moved, product, tile, kind)
            del scratch
            self._counts.launches[self.name] += 1
        if launch_exit_hook:
            launch_exit_hook(launch_metadata)

    @cached_property
    def _assertions(self) -> Assertions | None:
        return assertions_of(self.src.fn) if self._is_generated else None

    def _check(self, args: tuple[Any, ...]) -> None:
        """Evaluates the kernel's checks of its indices.

        Raises:
            AcceleratorError: PyTorch's error, if a check fails.
        """
        if self._assertions is None:
            return
        import torch

        named = dict(zip(self.src.fn.arg_names, args, strict=False))
        try:
            with torch._C._DisableTorchDispatch():
                failed = self._assertions.failed(named, _known_elements)
                if failed is not None:
                    torch.ops.plimsoll.fail_check(f"{failed} ({self.name})")
        except UndecidedError:
            assume(self.name, UNDECIDED_CHECK)

    def _take_scratch(self, programs: int, stream: int | None) -> Any:
        """Takes scratch memory from the allocator that the program gave Triton; None if unneeded.

        As on a GPU, a launch holds this memory until the kernel is queued.
        """
        size = getattr(self.metadata, "global_scratch_size", 0)
        if not size:
            return None
        allocation = self._triton.runtime._allocation
        alignment = getattr(self.metadata, "global_scratch_align", 1)
        allocate = allocation._allocator
        allocate = allocate.get() if hasattr(allocate, "get") else allocate
        blocks = programs * getattr(self.metadata, "num_ctas", 1)
        return allocate(size * blocks, alignment, stream)

    def _written(self, args: tuple[Any, ...]) -> list[Any]:
        """Returns the GPU tensors that the kernel may write; all its tensors if unknown."""
        named = zip(self.src.fn.arg_names, args, strict=False)
        given = [value for name, value in named if name in self._writes or not self._writes]
        return [tensor for tensor in _tensors(given) if tensor.is_cuda]

    def _multiplied(self, args: tuple[Any, ...]) -> tuple[list[float], list[int], Any]:
        """Returns the size, tile and dtype of the matrix product that the launch computes.

        The size and the tile are empty if plimsoll finds no product.
        """
        import torch

        if self._template is not None:
            found = multiplied(dict(zip(self.src.fn.arg_names, args, strict=False)))
            if found is not None:
                return found[0], self._template.tile, found[1]
        return [], [], torch.float32


def _known_elements(tensor: Any) -> Any:
    """Returns a tensor's values as a flat array, as `asserted.Values` requires.

    Returns None if the values are unknown, or are floating-point or complex numbers.
    """
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.is_floating_point() or tensor.is_complex():
        return None
    length = tensor.untyped_storage().nbytes() // tensor.itemsize - tensor.storage_offset()
    whole = torch.as_strided(tensor, (length,), (1,))
    values = torch.ops.plimsoll.known_values(whole)
    if values is None:
        values = torch.ops.plimsoll.known_values(tensor)
        values = values if values is not None and tensor.is_contiguous() else None
    return None if values is None else values.reshape(-1).numpy()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _tensors(args: Any) -> Iterator[Any]:
    import torch

    for argument in args:
        if isinstance(argument, torch.Tensor):
            yield argument
        elif isinstance(argument, tuple):
            yield from _tensors(argument)
        elif isinstance(getattr(argument, "base", None), torch.Tensor):  # a tensor descriptor
            yield argument.base
