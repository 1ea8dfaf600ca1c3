"""Tests that the call stacks that plimsoll captures have the same frames as `traceback`'s."""

from __future__ import annotations

import asyncio
import functools
import threading
import traceback
from typing import TYPE_CHECKING, Any

from plimsoll import _core

if TYPE_CHECKING:
    from collections.abc import Iterator


def check() -> int:
    """Checks that plimsoll and `traceback` see the same stack here. Returns plimsoll's number."""
    number, summary = _core.capture_stack(), traceback.extract_stack()
    wanted = [(frame.filename, frame.lineno, frame.name) for frame in reversed(summary)]
    assert _core.stack_frames(number) == wanted
    return number


def deep(levels: int) -> int:
    return deep(levels - 1) if levels else check()


def test_functions_methods_and_operators() -> None:
    class Thing:
        def __init__(self) -> None:
            check()

        @property
        def value(self) -> int:
            return check()

        def __lt__(self, other: Any) -> bool:
            return check() > 0

    assert Thing().value > 0
    sorted([Thing(), Thing()])
    deep(200)


def test_what_c_calls() -> None:
    functools.reduce(lambda *_: check(), [1, 2])
    list(map(lambda _: check(), [1]))  # noqa: C417
    [check() for _ in range(2)]


def test_generators_and_coroutines() -> None:
    def numbers() -> Iterator[int]:
        yield check()
        yield from (check() for _ in range(2))

    async def wait() -> int:
        await asyncio.sleep(0)
        return check()

    assert len(list(numbers())) == 3
    assert asyncio.run(wait()) > 0


def test_threads() -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(deep(5))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1, "the same code, so the same stack"


def test_equal_stacks_have_equal_numbers() -> None:
    first, second = (deep(3) for _ in range(2))
    assert first == second
    assert deep(3) != first, "another line"


def test_two_stacks_join_to_one() -> None:
    inner, outer = deep(1), deep(2)
    joined = _core.join_stacks(inner, outer)
    assert _core.stack_frames(joined) == _core.stack_frames(inner) + _core.stack_frames(outer)
    assert _core.join_stacks(inner, outer) == joined
    assert _core.join_stacks(outer, inner) != joined


def test_code_that_is_gone_is_never_mistaken_for_other_code() -> None:
    numbers = set()
    for number in range(2000):
        scope: dict[str, Any] = {"capture": _core.capture_stack}
        exec(compile(f"\ndef f{number}(): return capture()", f"file{number}", "exec"), scope)
        captured = scope[f"f{number}"]()
        numbers.add(captured)
        assert _core.stack_frames(captured)[0] == (f"file{number}", 2, f"f{number}")
    assert len(numbers) == 2000
