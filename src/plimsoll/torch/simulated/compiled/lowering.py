"""Runs Triton's compiler as far as needed: to Triton's IR, or to machine code of a GPU."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from plimsoll.base.errors import InputError
from plimsoll.base.files import NewFile

if TYPE_CHECKING:
    from pathlib import Path

_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+)")
_WORD = 4


@dataclass(frozen=True)
class Registers:
    """The registers that each thread of a kernel needs.

    Attributes:
        used: Registers of 32 bits.
        spilled: 32-bit words that lie in memory because there are too few registers.
    """

    used: int
    spilled: int


class Lowering:
    """One kernel with its constants and options, compiled stage by stage.

    Args:
        src: The kernel: Triton's ASTSource.
        target: The card's architecture: Triton's GPUTarget.
        backend: Triton's backend for that architecture.
        options: The compiler's options, as the backend parsed them.
        compiler: The module `triton.compiler.compiler`.
    """

    def __init__(self, src: Any, target: Any, backend: Any, options: Any, compiler: Any) -> None:
        self._src = src
        self._target = target
        self._backend = backend
        self._options = options
        self._compiler = compiler

    def parsed(self) -> tuple[Any, Any]:
        """Returns the kernel's module in Triton's IR, and the context, which must outlive it.

        Raises:
            CompilationError: Triton's error for a kernel that does not compile.
        """
        ir = self._compiler.ir
        context = ir.context()
        ir.load_dialects(context)
        self._backend.load_dialects(context)
        functions = self._backend.get_codegen_implementation(self._options)
        modules = self._backend.get_module_map()
        given = (self._target, self._options, functions, modules, context)
        # Up to Triton 3.5, `make_ir` does not take the target.
        taken = len(inspect.signature(self._src.make_ir).parameters)
        return self._src.make_ir(*given[len(given) - taken :]), context

    def until(self, *ends: str) -> tuple[Any, dict[str, Any]]:
        """Runs the compiler's stages before the first in `ends`. Returns the code and metadata."""
        module, context = self.parsed()
        metadata: dict[str, Any] = {"target": self._target, **self._options.__dict__}
        stages: dict[str, Any] = {}
        self._backend.add_stages(stages, self._options, self._src.language)
        for name, stage in stages.items():
            if name in ends:
                break
            module = stage(module, metadata)
        del context
        return module, metadata

    def registers(self, kept_in: Path) -> Registers:
        """Returns the registers of the compiled kernel, and keeps them in a file for later runs."""
        with suppress(OSError, ValueError, TypeError):  # the file is missing or damaged
            return Registers(**json.loads(kept_in.read_text()))
        from triton import knobs

        code, _ = self.until("")
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(code)
            file.flush()
            command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
            shown = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
        used, stack = map(int, _RESOURCES.findall(shown.stdout)[-1])
        found = Registers(used, stack // _WORD)
        with suppress(OSError, InputError):
            kept_in.parent.mkdir(parents=True, exist_ok=True)
            with NewFile(kept_in, force=True) as text:
                text.write(json.dumps(asdict(found)).encode())
        return found
