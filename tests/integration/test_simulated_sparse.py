"""Tests sparse tensors on simulated GPUs: memory, products, and refused operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.simulated import on_simulated_gpus

if TYPE_CHECKING:
    from collections.abc import Callable

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")


def requests(call: Callable[[], Any]) -> list[int]:
    """Returns the sizes of the allocations that a call requests, in order."""
    torch.cuda.memory._record_memory_history("all", context=None)
    before = len(torch.cuda.memory._snapshot()["device_traces"][0])
    kept = call()
    trace = torch.cuda.memory._snapshot()["device_traces"][0][before:]
    del kept
    return [event["size"] for event in trace if event["action"] == "alloc"]


def coordinates(rows: int, per_row: int) -> Any:
    """Returns a sparse matrix with `per_row` distinct elements in each row."""
    row = torch.arange(rows).repeat_interleave(per_row)
    column = (row * 7 + torch.arange(rows * per_row) % per_row * 13) % rows
    index = torch.stack([row, column]).cuda()
    return torch.sparse_coo_tensor(index, torch.ones(rows * per_row).cuda(), (rows, rows))


@on_simulated_gpus()
def test_coordinates_are_merged_exactly_where_they_are_known() -> None:
    index = torch.tensor([[3, 0, 3, 1], [1, 2, 1, 1]], device="cuda")
    values = torch.tensor([1.0, 2.0, 4.0, 8.0], device="cuda")
    merged = torch.sparse_coo_tensor(index, values, (4, 4)).coalesce()
    assert merged.indices().tolist() == [[0, 1, 3], [2, 1, 1]]
    assert merged.values().tolist() == [2, 8, 5]
    dense = merged.to_dense()
    assert dense[3, 1].item() == 5
    assert torch.equal(torch.sparse.mm(merged, dense).cpu(), dense.cpu() @ dense.cpu())
    compressed = dense.to_sparse_csr()
    assert compressed.crow_indices().tolist() == [0, 1, 2, 2, 3]
    assert (compressed @ torch.ones(4, device="cuda")).tolist() == [2, 8, 0, 5]


@on_simulated_gpus()
def test_merging_asks_for_what_thrust_asks_for() -> None:
    matrix = coordinates(1000, 50)
    # Requests on an H200 with PyTorch 2.11. The first three have 8 bytes per element: sort
    # keys, indices before the sort, and offsets of unique keys. The next two are scratch memory, to
    # sort the keys and to find the unique keys. The last two are the summed values and the indices.
    pointers = [400_000, 400_000, 400_000]
    assert requests(matrix.coalesce) == [*pointers, 800_767, 1535, 200_000, 800_000]


@on_simulated_gpus()
def test_products_ask_for_indices_of_32_bits_and_cusparse_buffers() -> None:
    merged = coordinates(20_000, 5).coalesce()
    right = torch.randn(20_000, 16, device="cuda")
    result = 20_000 * 16 * 4
    assert requests(lambda: torch.sparse.mm(merged, right)) == [
        result, result, 80_004, 400_000, 400_000, result, 1571,
    ]  # fmt: skip
    compressed = merged.to_sparse_csr()
    assert requests(lambda: compressed @ right) == [result, result, 33_343]
    assert requests(lambda: compressed @ right[:, 0].contiguous())[-1] == 279


@on_simulated_gpus()
def test_gradients_flow_through_products_of_either_layout() -> None:
    merged = coordinates(2000, 8).coalesce()
    for matrix in (merged, merged.to_sparse_csr()):
        right = torch.randn(2000, 32, device="cuda", requires_grad=True)
        torch.sparse.mm(matrix, right).sum().backward()
        assert right.grad.shape == right.shape
        assert right.grad.is_cuda
    held = merged.to_sparse_csr().requires_grad_()
    torch.sparse.mm(held, torch.ones(2000, 4, device="cuda")).sum().backward()
    assert held.grad.layout == torch.sparse_csr


def gradients_to_values(device: str, *, is_merged: bool) -> list[Any]:
    """Applies operations to a sparse matrix.

    Returns:
        The operations' results, and the gradients with respect to the matrix's values.
    """
    index = [[0, 1, 1], [2, 0, 2]] if is_merged else [[0, 1, 1, 0], [2, 0, 2, 2]]
    indices = torch.tensor(index, device=device)
    dense = torch.arange(6.0, device=device)
    mask = torch.eye(2, 3, device=device).to_sparse()
    operations: tuple[Callable[[Any], Any], ...] = (
        lambda matrix: torch.sparse.mm(matrix, dense.view(3, 2)),
        lambda matrix: matrix @ dense[:3],
        lambda matrix: torch.sparse.addmm(dense.view(2, 3)[:, :2], matrix, dense.view(3, 2)),
        lambda matrix: torch.sparse.sum(matrix, dim=0).to_dense(),
        lambda matrix: torch.sparse.sum(matrix, dim=(0, 1)),
        lambda matrix: torch.sparse.softmax(matrix, dim=1).to_dense(),
        lambda matrix: torch.sparse.log_softmax(matrix, dim=0).to_dense(),
        lambda matrix: matrix.coalesce().values(),
        lambda matrix: (matrix * matrix.detach()).to_dense(),
        lambda matrix: matrix.sparse_mask(mask).to_dense(),
        lambda matrix: (matrix + mask).to_dense(),
    )
    found = []
    for operation in operations:
        values = torch.arange(1.0, 1 + len(index[0]), device=device, requires_grad=True)
        result = operation(torch.sparse_coo_tensor(indices, values, (2, 3)))
        result.square().sum().backward()
        found += [result.detach().cpu(), values.grad.cpu()]
    return found


@pytest.mark.parametrize("is_merged", [True, False])
@on_simulated_gpus()
def test_gradients_to_the_values_of_a_matrix_are_those_of_the_host(is_merged: bool) -> None:
    on_host = gradients_to_values("cpu", is_merged=is_merged)
    on_device = gradients_to_values("cuda", is_merged=is_merged)
    for expected, found in zip(on_host, on_device, strict=True):
        torch.testing.assert_close(found, expected)


@on_simulated_gpus()
def test_sparse_gradients_of_embeddings_are_taken_by_optimizers() -> None:
    table = torch.nn.Embedding(1000, 16, sparse=True, device="cuda")
    bag = torch.nn.EmbeddingBag(1000, 16, sparse=True, mode="sum", device="cuda")
    optimizer = torch.optim.SparseAdam([*table.parameters(), *bag.parameters()], lr=0.1)
    chosen = torch.tensor([1, 5, 5, 900], device="cuda")
    before = table.weight.detach().clone()
    (table(chosen).sum() + bag(chosen.view(2, 2)).sum()).backward()
    assert table.weight.grad.layout == torch.sparse_coo
    assert table.weight.grad._nnz() == 4
    optimizer.step()
    moved = (table.weight != before).any(dim=1).nonzero()[:, 0]
    assert moved.tolist() == [1, 5, 900]


@on_simulated_gpus()
def test_gradients_of_bags_are_those_of_the_host() -> None:
    chosen = torch.tensor([[1, 3], [3, 5]])
    for mode in ("sum", "mean"):
        gradients = []
        for device in ("cpu", "cuda"):
            table = torch.arange(20.0, device=device).view(10, 2)
            bag = torch.nn.EmbeddingBag.from_pretrained(table, freeze=False, sparse=True, mode=mode)
            bag(chosen.to(device)).square().sum().backward()
            gradients.append(bag.weight.grad.to_dense().cpu())
        assert torch.equal(*gradients)


@on_simulated_gpus()
def test_blocks_multiply() -> None:
    kept = (torch.arange(8)[:, None] + torch.arange(8)) % 2 == 0
    weight = kept.repeat_interleave(16, 0).repeat_interleave(16, 1).float().cuda()
    blocks = weight.to_sparse_bsr((16, 16))
    assert blocks.values().shape == (32, 16, 16)
    assert (blocks @ torch.ones(128, 4, device="cuda")).unique().tolist() == [64]


@on_simulated_gpus()
def test_chosen_rows_and_columns_are_those_of_the_host() -> None:
    index = torch.tensor([[3, 0, 3, 1], [1, 2, 0, 1]], device="cuda")
    matrix = torch.sparse_coo_tensor(index, torch.tensor([1.0, 2, 4, 8], device="cuda"), (4, 3))
    deep = torch.sparse_coo_tensor(index[:1], torch.arange(8.0, device="cuda").view(4, 2), (4, 2))
    for sparse in (matrix, matrix.coalesce(), deep.coalesce()):
        for dim, chosen in ((0, [3, -1, 2, 3]), (1, [1, 0, 1]), (0, [2]), (0, [])):
            places = torch.tensor(chosen, dtype=torch.long, device="cuda")
            found = sparse.index_select(dim, places).to_dense()
            expected = sparse.to_dense().cpu().index_select(dim, places.cpu() % sparse.size(dim))
            assert torch.equal(found.cpu(), expected)


@on_simulated_gpus("--values", "none")
def test_choosing_rows_asks_for_what_it_asks_for_on_a_gpu() -> None:
    # Requests on an H200 with PyTorch 2.11 for a merged matrix with 60,000 rows and 3,788,612
    # elements. 640,491 of them were in the chosen rows; plimsoll takes the mean number of a row.
    elements, rows = 3_788_612, 2000
    index = torch.empty(2, elements, dtype=torch.long, device="cuda").random_(18_000)
    values = torch.empty(elements, device="cuda")
    matrix = torch.sparse_coo_tensor(index, values, (60_000, 18_000), is_coalesced=True)
    chosen = torch.arange(rows, device="cuda")
    found = round(elements * rows / 60_000)
    of_rows, of_found = rows * 8, found * 8
    assert requests(lambda: matrix.index_select(0, chosen)) == [
        *(of_rows, of_rows, elements * 8, of_rows, of_rows, 8),
        *(of_found, of_found, of_rows, 1279, 8, 2 * of_found, found * 4),
    ]


@on_simulated_gpus()
def test_what_is_not_modelled_is_refused_in_one_line() -> None:
    merged = coordinates(100, 3).coalesce()
    calls: tuple[Callable[[], Any], ...] = (
        lambda: torch.sparse.mm(merged, merged),
        lambda: merged.to_sparse_csr() @ merged.to_sparse_csr(),
        lambda: torch.hspmm(merged, torch.ones(100, 3, device="cuda")),
    )
    for call in calls:
        with pytest.raises(NotImplementedError, match="plimsoll cannot simulate") as caught:
            call()
        assert "\n" not in str(caught.value)
