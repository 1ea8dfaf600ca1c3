"""Tests factorizations on simulated GPUs: results as on the host, workspaces as in cuSOLVER."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.simulated import on_simulated_gpus

if TYPE_CHECKING:
    from collections.abc import Callable

torch = pytest.importorskip("torch")
linalg = torch.linalg


def peak(call: Callable[[], Any]) -> int:
    """Returns how far a call's peak exceeds the memory that was allocated before the call."""
    torch.cuda.empty_cache()  # otherwise cached blocks might be split differently
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = call()
    del kept
    return int(torch.cuda.max_memory_allocated() - before)


def definite(*shape: int) -> Any:
    matrix = torch.randn(*shape, device="cuda")
    return matrix @ matrix.mT + shape[-1] * torch.eye(shape[-1], device="cuda")


@on_simulated_gpus()
def test_workspaces_are_those_of_the_card() -> None:
    # Measured on an H200 with PyTorch 2.11 and CUDA 13.0.
    tall = torch.randn(1000, 200, device="cuda")
    assert peak(lambda: linalg.svdvals(tall)) == pytest.approx(4_909_056, rel=0.001)
    assert peak(lambda: linalg.qr(tall)) == 4_108_288
    matrix = definite(1024, 1024)
    assert peak(lambda: linalg.cholesky_ex(matrix)) == 4_199_424
    assert peak(lambda: linalg.qr(matrix)) == 14_685_184
    assert peak(lambda: linalg.inv_ex(matrix)) == 12_612_096
    assert peak(lambda: linalg.svd(matrix, full_matrices=False)) == 21_263_360
    assert peak(lambda: linalg.eigh(matrix)) == pytest.approx(21_628_416, rel=0.001)
    batch = definite(8, 16, 16)
    assert peak(lambda: linalg.cholesky_ex(batch)) == 9216
    assert peak(lambda: linalg.qr(batch)) == pytest.approx(150_528, rel=0.02)


@on_simulated_gpus()
def test_solvers_compute_and_differentiate() -> None:
    matrix = definite(8, 8).requires_grad_()
    right = torch.randn(8, 2, device="cuda")
    solved = linalg.solve(matrix, right)
    assert torch.allclose(matrix @ solved, right, atol=1e-3)
    factor = linalg.cholesky(matrix)
    assert torch.allclose(factor @ factor.mT, matrix, atol=1e-3)
    (linalg.eigvalsh(matrix).sum() + solved.sum()).backward()
    assert matrix.grad.shape == (8, 8)
    reflected, scales = torch.geqrf(matrix.detach())
    assert scales.shape == (8,)
    assert linalg.householder_product(reflected, scales).shape == (8, 8)
    tall = torch.randn(20, 4, device="cuda")
    assert linalg.lstsq(tall, torch.randn(20, 3, device="cuda")).solution.shape == (4, 3)


@on_simulated_gpus()
def test_singular_values_of_nan_are_nan_as_on_a_gpu() -> None:
    unknown = torch.full((3, 3), float("nan"), device="cuda")
    assert linalg.svd(unknown).S.isnan().all()
    assert linalg.svdvals(torch.full((40, 40), float("nan"), device="cuda")).isnan().all()
    with pytest.raises(linalg.LinAlgError, match="failed to converge"):
        linalg.svd(unknown, driver="gesvd")
