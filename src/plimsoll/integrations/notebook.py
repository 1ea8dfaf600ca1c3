"""`%load_ext plimsoll`: the magic `%%memory` in IPython and Jupyter."""

from __future__ import annotations

from typing import Any


def load_ipython_extension(ipython: Any) -> None:
    """Give a notebook `%%memory`, which says what a cell took of the GPU and which lines hold it.

    IPython calls it for `%load_ext plimsoll`; docs/integrations.md has an example.
    """
    from plimsoll.integrations.cell_magic import run_cell  # late: it needs IPython

    def memory(line: str, cell: str) -> Any:
        """Run a cell and show what it took of the GPU, and which lines hold it.

        `%%memory --record FILE` keeps the recording, a .plim.
        """
        return run_cell(ipython, line, cell)

    ipython.register_magic_function(memory, "cell")
