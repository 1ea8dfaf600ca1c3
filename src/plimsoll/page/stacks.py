"""Stores call stacks as tables, without repetitions.

Each string and each frame is stored once. A chain of outer frames that several stacks share is also
stored once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from plimsoll.base.printable import printable
from plimsoll.page.columns import pack_column
from plimsoll.recordings.analysis.lines import is_program, is_users, source_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from plimsoll.recordings.events import Frame


@dataclass(frozen=True)
class StackTable:
    """Stacks that share their outer frames.

    Node 0 is the empty stack. Every other node is the stack of its parent plus one frame, which the
    parent's innermost frame called. All arrays are int64.

    Attributes:
        strings: File and function names.
        frame_file: For each frame, the index of its file's name.
        frame_line: For each frame, its line number.
        frame_function: For each frame, the index of its function's name.
        frame_program: For each frame, the kind of its file: 2 for the user's own, 1 for a
            library's, 0 for PyTorch's or Python's.
        node_frame: For each node, its frame; unused for node 0.
        node_parent: For each node, the node of its caller.
        stack_node: For each stack, the node of its innermost frame.
        stack_line: For each stack, the index of its source line in `lines`.
        lines: The source lines, as text.
    """

    strings: Sequence[str]
    frame_file: NDArray[np.int64]
    frame_line: NDArray[np.int64]
    frame_function: NDArray[np.int64]
    frame_program: NDArray[np.int64]
    node_frame: NDArray[np.int64]
    node_parent: NDArray[np.int64]
    stack_node: NDArray[np.int64]
    stack_line: NDArray[np.int64]
    lines: Sequence[str]

    def frames(self, stack: int) -> list[Frame]:
        """Returns the frames of a stack, innermost first."""
        found = []
        node = int(self.stack_node[stack])
        while node:
            frame = int(self.node_frame[node])
            file, name = self.frame_file[frame], self.frame_function[frame]
            found.append((self.strings[file], int(self.frame_line[frame]), self.strings[name]))
            node = int(self.node_parent[node])
        return found

    def pack(self) -> dict[str, Any]:
        """Returns the tables, packed for the page's data."""
        return {
            "strings": self.strings,
            "lines": self.lines,
            "frame_file": pack_column(self.frame_file),
            "frame_line": pack_column(self.frame_line),
            "frame_function": pack_column(self.frame_function),
            "frame_program": pack_column(self.frame_program),
            "node_frame": pack_column(self.node_frame),
            "node_parent": pack_column(self.node_parent),
            "stack_node": pack_column(self.stack_node),
            "stack_line": pack_column(self.stack_line),
        }


def make_stack_table(stacks: Iterable[Sequence[Frame]]) -> StackTable:
    """Makes the tables of some stacks. Each stack lists its innermost frame first.

    All text in the tables is made printable.
    """
    strings: dict[str, int] = {}
    frames: dict[Frame, int] = {}
    nodes: dict[tuple[int, int], int] = {}
    lines: dict[str, int] = {}
    node_of, line = [], []
    for stack in stacks:
        node = 0
        for frame in reversed(stack):
            number = frames.setdefault(frame, len(frames))
            node = nodes.setdefault((node, number), len(nodes) + 1)
        node_of.append(node)
        line.append(lines.setdefault(printable(source_line(stack)), len(lines)))

    def string(text: str) -> int:
        return strings.setdefault(printable(text), len(strings))

    rows = [(string(file), number, string(name)) for file, number, name in frames]
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    tree = np.array([(0, 0), *nodes], dtype=np.int64)
    return StackTable(
        strings=list(strings),
        frame_file=table[:, 0],
        frame_line=table[:, 1],
        frame_function=table[:, 2],
        frame_program=np.array(
            [is_program(frame) + is_users(frame) for frame in frames], dtype=np.int64
        ),
        node_frame=tree[:, 1],
        node_parent=tree[:, 0],
        stack_node=np.array(node_of, dtype=np.int64),
        stack_line=np.array(line, dtype=np.int64),
        lines=list(lines),
    )
