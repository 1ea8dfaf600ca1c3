"""Tests on a real GPU that memory under plimsoll behaves as under PyTorch's own allocator."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

if TYPE_CHECKING:
    from tests.gpu.behaviours.behaviour import Behaviour
    from tests.gpu.behaviours.runner import Results

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.alone,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU"),
]

from tests.gpu.behaviours import load  # noqa: E402
from tests.gpu.behaviours.runner import complaint, run  # noqa: E402


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> Results:
    """Returns the observations of the selected behaviours under all allocators."""
    tested = {
        behaviour.name
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path
        for behaviour in [cast("Behaviour", item.callspec.params["behaviour"])]
    }
    return run([behaviour for behaviour in load() if behaviour.name in tested])


@pytest.mark.parametrize("allocator", ["native", "elastic"])
@pytest.mark.parametrize("behaviour", load(), ids=lambda behaviour: behaviour.name)
def test_it_is_as_under_pytorchs_own_allocator(
    behaviour: Behaviour, allocator: str, results: Results
) -> None:
    found = results[behaviour.name]
    if "skipped" in found["torch"] and found["torch"] == found[allocator]:
        pytest.skip(found["torch"]["skipped"])
    assert not complaint(behaviour, allocator, found)
