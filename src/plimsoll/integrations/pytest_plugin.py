"""The pytest mark `@pytest.mark.gpu_memory("2GiB")`: a budget of GPU memory for a test.

plimsoll watches a GPU from the first fixture of the test to the end of the test. All live memory
counts, including memory allocated before the test. A test that exceeds its budget fails, and the
message names the lines that hold the memory. Without a GPU, tests with a budget run on a simulated
one, in a process of their own (`simulated_tests.py`).

pytest imports this file in every project where plimsoll is installed. So this file imports other
modules only when they are used.
"""

from __future__ import annotations

import gc
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

    from plimsoll.engine.recorder.recorder import Recorder

_CARD = "gpu_memory_card"
_MOST_LINES = 6


@dataclass(frozen=True)
class _Recording:
    """The recording of a running test."""

    budget_bytes: int
    recorder: Recorder
    opened: ExitStack


_RECORDING = pytest.StashKey[_Recording]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the configuration option that names the card to simulate if there is no GPU."""
    parser.addini(
        _CARD, "What tests with a gpu_memory budget run on where there is no GPU.", default="H100"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Registers the mark `gpu_memory`."""
    config.addinivalue_line(
        "markers",
        "gpu_memory(budget): fails the test if more than this, such as '2GiB', is allocated on a "
        "GPU at any moment of it; without a GPU it runs on a simulated one",
    )


@pytest.hookimpl(trylast=True)  # after other plug-ins have selected the tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Checks all budgets before the first test.

    Without a GPU, makes the tests with a budget run on a simulated GPU.

    Raises:
        UsageError: If a budget is not a size, the card is unknown, or PyTorch is not installed.
    """
    from plimsoll.base.errors import InputError

    with_budget = [item for item in items if item.get_closest_marker("gpu_memory")]
    if not with_budget:
        return
    for item in with_budget:
        try:
            _budget_of(item)
        except InputError as error:
            raise pytest.UsageError(f"{item.nodeid}: gpu_memory: {error}") from None

    from plimsoll.integrations.simulated_tests import SimulatedTests, has_gpu

    try:
        if not has_gpu():
            card = str(config.getini(_CARD))
            config.pluginmanager.register(SimulatedTests(config, with_budget, card))
    except InputError as error:
        raise pytest.UsageError(f"gpu_memory: {error}") from None


def _budget_of(item: pytest.Item) -> int | None:
    """Returns the budget in bytes; None for a test without one.

    Raises:
        InputError: If the budget is not a size.
    """
    from plimsoll.base.errors import InputError
    from plimsoll.base.units import parse_size

    mark = item.get_closest_marker("gpu_memory")
    if mark is None:
        return None
    if len(mark.args) != 1 or mark.kwargs:
        raise InputError('give one size, as in @pytest.mark.gpu_memory("2GiB")')
    return parse_size(mark.args[0])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """If the test has a budget, begins to record before the test's fixtures run."""
    budget_bytes = _budget_of(item)
    if budget_bytes is not None:
        from plimsoll.base.errors import InputError
        from plimsoll.torch.session.record import record

        gc.collect()  # frees memory that earlier tests left in reference cycles
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="plimsoll-"))
            try:
                recorder = stack.enter_context(record(f"{folder}/test.plim"))
            except InputError as error:
                pytest.fail(f"gpu_memory: {error}", pytrace=False)
            item.stash[_RECORDING] = _Recording(budget_bytes, recorder, stack.pop_all())
    return (yield)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Fails a test that passed but exceeded its budget."""
    result = yield
    recording = item.stash.get(_RECORDING, None)
    if recording is not None:
        recording.recorder.stop()
        _check(recording)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Ends the recording, if it still runs, and deletes its file."""
    recording = item.stash.get(_RECORDING, None)
    if recording is not None:
        recording.opened.close()
        del item.stash[_RECORDING]
    return (yield)


def _check(recording: _Recording) -> None:
    from plimsoll.base.printable import join_lines
    from plimsoll.base.units import format_size, size_row
    from plimsoll.integrations.recorded_peak import recorded_peak

    if not recording.recorder.event_count:
        pytest.fail("gpu_memory: the test used no GPU, so its budget says nothing", pytrace=False)
    peak, budget_bytes = recorded_peak(recording.recorder.path), recording.budget_bytes
    allocated, over_bytes = format_size(peak.allocated_bytes), peak.allocated_bytes - budget_bytes
    if over_bytes <= 0:
        return
    rows = [
        f"gpu_memory: {allocated} is allocated on GPU {peak.device} at the peak, "
        f"{format_size(over_bytes)} more than the budget of {format_size(budget_bytes)}"
    ]
    if peak.before_bytes:
        rows.append(f"{format_size(peak.before_bytes)} of it was there before the test")
    rows.append("Lines that hold the most at the peak:")
    rows += [f"  {size_row(line.bytes, line.line)}" for line in peak.lines[:_MOST_LINES]]
    pytest.fail(join_lines(rows), pytrace=False)
