"""`%%memory`: runs a cell, recorded, and shows what it took."""

from __future__ import annotations

import ast
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class, needs_local_scope
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display

from plimsoll.errors import InputError
from plimsoll.integrations.cell_memory import CellMemory, NamesCells
from plimsoll.integrations.recorded_peak import recorded_peak
from plimsoll.session.record import record

if TYPE_CHECKING:
    from collections.abc import Iterator


@magics_class
class MemoryMagic(Magics):  # type: ignore[misc]  # IPython has no types for us
    """The magic of `%load_ext plimsoll`."""

    @needs_local_scope
    @cell_magic
    @magic_arguments()
    @argument("--record", metavar="FILE", help="Keep the recording in this file, a .plim.")
    def memory(self, line: str, cell: str, local_ns: dict[str, Any] | None = None) -> Any:
        """Run a cell and show what it took of the GPU, and which lines hold it."""
        asked = parse_argstring(self.memory, line)
        compiled = _Cell(self.shell, f"%%memory {line}\n", cell)
        with self._shown(compiled.name, asked.record):
            return compiled.run(local_ns)

    @contextmanager
    def _shown(self, name: str, kept: str | None) -> Iterator[None]:
        """Record what is done in here, and show it, also if it fails."""
        import torch

        with ExitStack() as stack:
            if kept is None:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="plimsoll-"))
                path = Path(folder) / "cell.plim"
            else:
                path = Path(kept)
            recorder = record(path)
            try:
                recorder.__enter__()
            except InputError as error:
                raise UsageError(str(error)) from None
            before = _allocated(torch)
            try:
                yield
            finally:
                after = _allocated(torch)
                recorder.stop()
                peak = recorded_peak(path) if recorder.event_count else None
                device = 0 if peak is None else peak.device
                keeps = after[device] - before[device]
                names = NamesCells(self.shell.compile.format_code_name)
                display(CellMemory.of(names(name), peak, keeps, kept, names))


def _allocated(torch: Any) -> list[int]:
    """In live blocks of each GPU."""
    return [torch.cuda.memory_allocated(index) for index in range(torch.cuda.device_count())]


class _Cell:
    """A cell as IPython compiles it, whose lines have the numbers that they have in the notebook.

    Args:
        shell: IPython.
        head: What stands above the code, with the magic.
        code: The rest.
    """

    def __init__(self, shell: Any, head: str, code: str) -> None:
        self._shell = shell
        source = shell.transform_cell(code)
        compiler = shell.compile
        number = len(shell.history_manager.input_hist_parsed) - 1
        self.name = compiler.cache(head + source, number, raw_code=head + code)
        tree = shell.transform_ast(compiler.ast_parse(source, self.name))
        ast.increment_lineno(tree, head.count("\n"))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        self._statements = compiler(tree, self.name, "exec")
        self._value = last and compiler(ast.Expression(last.value), self.name, "eval")

    def run(self, local_ns: dict[str, Any] | None) -> Any:
        """Run it; the value of its last line, if that is one."""
        names = self._shell.user_ns
        exec(self._statements, names, local_ns)  # noqa: S102
        return None if self._value is None else eval(self._value, names, local_ns)  # noqa: S307
