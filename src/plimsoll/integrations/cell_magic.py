"""Implements `%%memory`: runs and records a cell, and shows the memory that the cell took."""

from __future__ import annotations

import ast
import shlex
import tempfile
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser
from IPython.display import display

from plimsoll.base.errors import InputError
from plimsoll.integrations.cell_memory import CellMemory, NamesCells
from plimsoll.integrations.recorded_peak import recorded_peak
from plimsoll.torch.session.record import record

if TYPE_CHECKING:
    from collections.abc import Iterator


_OPTIONS = MagicArgumentParser(prog="%%memory", add_help=False)
_OPTIONS.add_argument("--record", metavar="FILE", help="Keep the recording in this file, a .plim.")


def run_cell(shell: Any, line: str, code: str) -> Any:
    """Runs a cell and shows its GPU memory, and the lines that hold it.

    Args:
        shell: The IPython shell.
        line: The text after `%%memory`.
        code: The rest of the cell.

    Returns:
        Returns the value of the cell's last line, if that line is an expression.

    Raises:
        UsageError: If an option is unknown, or the cell cannot be recorded; the cell does not run
            then.
    """
    try:
        asked = _OPTIONS.parse_args(shlex.split(line))
    except ValueError as error:  # for example a quotation mark is not closed
        raise UsageError(f"%%memory {line}: {error}") from None
    cell = _Cell(shell, f"%%memory {line}\n", code)
    with _shown(shell, cell.name, asked.record):
        return cell.run()


@contextmanager
def _shown(shell: Any, name: str, kept: str | None) -> Iterator[None]:
    """Records the code in the `with` block, and shows its memory even after an error."""
    import torch

    with ExitStack() as stack:
        path = kept
        if path is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="plimsoll-"))
            path = f"{folder}/cell.plim"
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
            names = NamesCells(shell.compile.format_code_name)
            keeps_bytes = after[device] - before[device]
            display(CellMemory.of(names(name), peak, keeps_bytes, kept, names))


def _allocated(torch: Any) -> list[int]:
    """Returns the allocated bytes of each GPU."""
    return [torch.cuda.memory_allocated(index) for index in range(torch.cuda.device_count())]


class _Cell:
    """A cell, compiled as IPython compiles it; lines have the same numbers as in the notebook.

    Args:
        shell: The IPython shell.
        head: The text above the code, with the magic.
        code: The rest of the cell.
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

    def run(self) -> Any:
        """Runs the cell. Returns the value of its last line, if that line is an expression."""
        names = self._shell.user_ns
        exec(self._statements, names)  # noqa: S102
        return None if self._value is None else eval(self._value, names)  # noqa: S307
