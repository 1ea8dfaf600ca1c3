"""Inspects the call stack of the simulated program: its line, its variables, its `while` loops."""

from __future__ import annotations

import dis
import inspect
import sys
import threading
from typing import TYPE_CHECKING, Any

from plimsoll.recordings.analysis.lines import is_program, source_line

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import CodeType, FrameType

_TESTED, _RETURNED = "tested", "returned"
"""The two uses of an expression's value: a condition tests it, or the function returns it."""


def is_in_open_loop(runners: Collection[str]) -> bool:
    """Returns whether a function of the program on this thread's stack is in a `while` loop.

    Args:
        runners: Files that run the program and are not part of it.
    """
    return any(map(_has_open_loop, program_frames(sys._getframe(1), runners)))


def is_tested(runners: Collection[str]) -> bool:
    """Returns whether the program tests a value that it is about to receive.

    The value is the result of the call that the program is executing on this thread. A test is a
    condition, such as that of an `if`. A value that is only printed or added up is not tested.

    Args:
        runners: As in `is_in_open_loop`.
    """
    for frame in program_frames(sys._getframe(1), runners):
        end = _end_of(frame.f_code, frame.f_lasti)
        if end != _RETURNED:
            return end == _TESTED
    return False


def integers(runners: Collection[str]) -> list[dict[str, int]]:
    """Returns the program's integer variables by name: a dict for each function of the stack."""
    return [
        {name: value for name, value in variables_of(frame).items() if type(value) is int}
        for frame in program_frames(sys._getframe(1), runners)
    ]


def variables_of(frame: FrameType) -> dict[str, Any]:
    """Returns the variables that a frame sees, without keeping them alive."""
    held = frame.f_locals
    variables = dict(held)
    # Before Python 3.13 a function's frame keeps the dictionary that `f_locals` returned. The
    # dictionary would keep tensors alive that the program deletes later.
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and isinstance(held, dict):
        held.clear()
    return variables


def where(runners: Collection[str]) -> str:
    """Returns the line of the program that its main thread is executing."""
    main = threading.main_thread().ident or 0
    # No variable may hold this function's own frame. The reference cycle would keep the tensors of
    # all its callers alive.
    return source_line(
        [
            (each.f_code.co_filename, each.f_lineno or 0, each.f_code.co_name)
            for each in program_frames(
                sys._getframe(1)
                if main == threading.get_ident()
                else sys._current_frames().get(main),
                runners,
            )
        ]
    )


def _end_of(code: CodeType, offset: int) -> str | None:
    """Returns how a function uses an instruction's value: `_TESTED`, `_RETURNED` or None.

    If the function stores the value in a variable, each read of the variable is a use of the value.
    """
    instructions = list(dis.get_instructions(code))
    # `offset` may lie within a call's instruction. So this takes the last instruction that begins
    # at or before it.
    starts = [sum(each.offset <= offset for each in instructions) - 1]
    names: set[object] = set()
    ends = set()
    while starts:
        end = next(filter(_ends_statement, instructions[starts.pop() :]), None)
        if end is None:
            continue
        if end.opname.startswith("STORE"):
            if end.argval in names or end.argval is None:
                continue
            names.add(end.argval)
            starts += [
                place
                for place, each in enumerate(instructions)
                if each.opname.startswith("LOAD") and each.argval == end.argval
            ]
        elif "JUMP" in end.opname:
            return _TESTED
        elif end.opname != "POP_TOP":
            ends.add(_RETURNED)
    return next(iter(ends), None)


def _ends_statement(instruction: dis.Instruction) -> bool:
    name = instruction.opname
    is_condition = "JUMP" in name and "IF" in name
    return is_condition or name.startswith(("STORE", "RETURN", "YIELD")) or name == "POP_TOP"


def program_frames(frame: FrameType | None, runners: Collection[str]) -> list[FrameType]:
    """Returns the frames of the program on the call stack of `frame`, innermost first.

    Args:
        frame: The innermost frame; None returns no frames.
        runners: As in `is_in_open_loop`.
    """
    frames = []
    while frame is not None and frame.f_code.co_filename not in runners:
        code = frame.f_code
        if is_program((code.co_filename, frame.f_lineno or 0, code.co_name)):
            frames.append(frame)
        frame = frame.f_back
    return frames


def _has_open_loop(frame: FrameType) -> bool:
    """Returns whether the frame executes a `while` loop.

    The bytecode of every loop ends with a jump backwards. The jump of a `for` loop leads to a
    FOR_ITER. A `yield from` and an `await` also jump backwards; their jump leads to a SEND. Every
    other jump backwards belongs to a `while` loop.
    """
    heads = _for_heads(frame.f_code)
    return any(
        target <= frame.f_lasti <= jump and target not in heads
        for jump, target in _jumps_back(frame.f_code)
    )


def _jumps_back(code: CodeType) -> list[tuple[int, int]]:
    return [
        (each.offset, each.argval)
        for each in dis.get_instructions(code)
        if "JUMP" in each.opname and isinstance(each.argval, int) and each.argval <= each.offset
    ]


def _for_heads(code: CodeType) -> set[int]:
    """Returns the offsets to which code jumps back in a `for`, a `yield from` or an `await`.

    The instruction there takes the next value. In a long loop an EXTENDED_ARG precedes this
    instruction. Then the offset of the EXTENDED_ARG is returned.
    """
    heads = set()
    begins: int | None = None
    for each in dis.get_instructions(code):
        if each.opname == "EXTENDED_ARG":
            begins = each.offset if begins is None else begins
            continue
        if each.opname in ("FOR_ITER", "SEND"):
            heads.add(each.offset if begins is None else begins)
        begins = None
    return heads
