"""Tests the scratch memory of kernels that sum: partial results and semaphores, as on an H200."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.simulated import on_simulated_gpus

# How many bytes the partial results of a GRU cell's bias gradients take, by the number of rows. The
# cell has 768 gates. Recorded on an H200 with PyTorch 2.11.
GRU_PARTIAL_BYTES = {
    4000: 24772608,
    9600: 58982400,
    13800: 84934656,
    18700: 115212288,
    22200: 136445952,
    22900: 138412032,
    45300: 138412032,
}


def requests_of(call: Callable[[], Any]) -> list[int]:
    """Returns the bytes of each request that a call makes, in order."""
    torch.cuda.memory._record_memory_history(None)
    torch.cuda.memory._record_memory_history("all", context=None)
    call()
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    return [event["size"] for event in events if event["action"] == "alloc"]


def backward_of(out: torch.Tensor) -> list[int]:
    seed = torch.empty_like(out)
    return requests_of(lambda: out.backward(seed))


def holds(requests: list[int], expected: list[int]) -> bool:
    """Returns whether `requests` contains `expected` as one unbroken sequence."""
    length = len(expected)
    return any(requests[i : i + length] == expected for i in range(len(requests)))


@on_simulated_gpus(gpu="H200")
def test_bias_gradients_of_recurrent_cells_keep_partial_results() -> None:
    gru, lstm = torch.nn.GRUCell(16, 256, device="cuda"), torch.nn.LSTMCell(16, 192, device="cuda")
    for rows, partial in GRU_PARTIAL_BYTES.items():
        x = torch.empty(rows, 16, device="cuda")
        gates = rows * 768 * 4
        found = backward_of(gru(x))
        expected = [gates, gates, gates // 3, 3072, partial, 24, 3072, partial, 24]
        assert holds(found, expected), (rows, found)
        # The LSTM cell has 768 gates, like the GRU cell. Its two biases have the same gradient, so
        # PyTorch computes this gradient only once.
        found = backward_of(lstm(x)[0])
        assert holds(found, [gates, gates // 4, 3072, partial, 24]), (rows, found)
        assert found.count(partial) == 1


@on_simulated_gpus(gpu="H200")
def test_few_rows_are_summed_by_one_block() -> None:
    cell = torch.nn.GRUCell(16, 256, device="cuda")
    assert 24 not in backward_of(cell(torch.empty(64, 16, device="cuda")))


@on_simulated_gpus(gpu="H200")
def test_ctc_loss_of_a_large_problem_sums_over_blanks() -> None:
    """The requests were recorded on an H200 with PyTorch 2.11."""

    def backward(steps: int, removes: bool) -> list[int]:
        scores = torch.randn(steps, 60, 512, device="cuda", requires_grad=True)
        targets = torch.randint(1, 512, (60, 40), device="cuda")
        loss = torch.nn.functional.ctc_loss(
            scores, targets, [steps] * 60, [40] * 60, reduction="none", zero_infinity=removes
        )
        return backward_of(loss)

    sums = [1968000, 48000, 48000, 12000, 1968000, 48000]
    grad = 200 * 60 * 512 * 4
    assert holds(backward(200, False), [480, 480, 480, 3888000, grad, *sums])
    assert holds(backward(200, True), [480, 480, 480, 3888000, grad, *sums, 4, 60, grad])
    # PyTorch has another kernel for small problems. A problem is small if 2 x steps +
    # 24 x batch / 10 + 2 x labels / 10 is at most 450; both divisions round down. A problem of 60
    # sequences and 512 labels is small up to 102 steps.
    assert 60 * 102 * 41 * 4 not in backward(102, False)
    assert 60 * 103 * 41 * 4 in backward(103, False)


@on_simulated_gpus(gpu="H200")
def test_many_short_rows_are_normalized_with_partial_gradients() -> None:
    """Follows cuda/layer_norm_kernel.cu: one partial gradient for every 32 rows."""
    for kind, norm_of in (("layer", torch.nn.LayerNorm), ("rms", torch.nn.RMSNorm)):
        norm = norm_of(96, device="cuda")
        count = 2 if kind == "layer" else 1

        def backward(rows: int, norm: torch.nn.Module = norm) -> list[int]:
            return backward_of(norm(torch.empty(rows, 96, device="cuda", requires_grad=True)))

        input_bytes, partial = 200000 * 96 * 4, 200000 // 32 * 96 * 4
        assert backward(65536) == [65536 * 96 * 4, *[384] * count]
        found = backward(200000)
        begin = [input_bytes, *[384] * count, *[partial] * count]
        assert found[: len(begin)] == begin, found
        assert found.count(384) == 2 * count  # the sums of the partial gradients are new tensors
        # PyTorch computes partial gradients only if a row has fewer than 66 blocks: half the number
        # of an H200's multiprocessors. A row of 2112 values has 66 blocks of 32 values.
        wide = norm_of(2112, device="cuda")
        x = torch.empty(65568, 2112, device="cuda", requires_grad=True)
        assert backward_of(wide(x)) == [x.nbytes, *[8448] * count]


@on_simulated_gpus(gpu="H200")
def test_groups_of_single_values_take_no_parameters_per_channel() -> None:
    norm = torch.nn.GroupNorm(4, 96, device="cuda")
    x = torch.empty(64, 96, device="cuda", requires_grad=True)
    groups = 64 * 4 * 4
    assert requests_of(lambda: norm(x)) == [x.nbytes, groups, groups]
    assert backward_of(norm(x)) == [x.nbytes, 384, 384, groups, groups]


@on_simulated_gpus(gpu="H200")
def test_statistics_over_several_processes_stage_channels_that_are_last() -> None:
    x = torch.empty(64, 96, 32, 32, device="cuda")
    last = x.to(memory_format=torch.channels_last)
    mean, deviation = torch.batch_norm_stats(x, 1e-5)
    weight = torch.ones(96, device="cuda")

    def reduced(x: torch.Tensor) -> list[int]:
        return requests_of(
            lambda: torch.batch_norm_backward_reduce(
                x, x, mean, deviation, weight, True, True, True
            )
        )

    # For the channels-last tensor `last`, the kernel has 3 columns of 128 blocks. Each column takes
    # a semaphore of 4 bytes, and sums 32 channels. For each channel, each block of the column
    # stages 4 numbers for the statistics, or 2 for the gradients.
    assert requests_of(lambda: torch.batch_norm_stats(x, 1e-5)) == [384, 384]
    staged = [384, 384, 4 * 96 * 128 * 4, 12]
    assert requests_of(lambda: torch.batch_norm_stats(last, 1e-5)) == staged
    assert reduced(x) == [384] * 4
    assert reduced(last) == [*[384] * 4, 2 * 96 * 128 * 4, 12]


@on_simulated_gpus(gpu="H200")
def test_batch_norm_of_channels_that_are_last_takes_cudnns_workspace() -> None:
    def workspaces(*shape: int) -> tuple[int, int]:
        norm = torch.nn.BatchNorm2d(shape[1], device="cuda")
        x = torch.empty(shape, device="cuda").contiguous(memory_format=torch.channels_last)
        x.requires_grad_()
        forward = requests_of(lambda: norm(x))
        backward = backward_of(norm(x))
        parameter = norm.weight.nbytes
        assert forward[:-1] == backward[:-1] == [x.nbytes, parameter, parameter]
        return forward[-1], backward[-1]

    # Measured on an H200 with cuDNN 9.19.
    assert workspaces(57, 420, 11, 13) == (463436, 305724)
    assert workspaces(57, 84, 21, 25) == (484056, 320552)
    assert workspaces(57, 220, 42, 50) == (3862832, 2554928)
    plain = torch.empty(57, 84, 21, 25, device="cuda")
    norm = torch.nn.BatchNorm2d(84, device="cuda")
    assert requests_of(lambda: norm(plain)) == [plain.nbytes, 336, 336]
    last = plain.contiguous(memory_format=torch.channels_last)
    assert requests_of(lambda: norm.eval()(last))[0] == last.nbytes


@on_simulated_gpus(gpu="H200")
def test_transforms_of_real_rows_with_a_large_prime_take_half_a_row() -> None:
    # Measured on an H200: 94 = 2 * 47 and 166 = 2 * 83.
    x = torch.empty(21300, 94, device="cuda")
    assert requests_of(lambda: torch.fft.rfft(x)) == [21300 * 48 * 8, 21300 * 47 * 8]
    x = torch.empty(18, 44, 150, 166, device="cuda")
    assert 18 * 44 * 150 * 83 * 8 in requests_of(lambda: torch.fft.rfft2(x))


@on_simulated_gpus(gpu="H200")
def test_a_tensor_that_is_known_to_be_zero_takes_no_memory() -> None:
    ones = torch.ones(1024, 1024, device="cuda")
    before = torch.cuda.memory_allocated()
    zero = torch._efficientzerotensor(ones.shape, device="cuda")
    product = zero * ones
    assert torch.cuda.memory_allocated() == before
    assert zero._is_zerotensor()
    assert product._is_zerotensor()
    assert (zero + ones).sum().item() == ones.numel()


@on_simulated_gpus(gpu="H200")
def test_distances_of_many_points_are_summed_by_several_blocks() -> None:
    x = torch.empty(64, 4, device="cuda", requires_grad=True)
    y = torch.empty(100000, 4, device="cuda")
    pairs, partial, semaphores = backward_of(torch.cdist(x, y, p=1.0))[1:]
    assert pairs == 64 * 100000 * 4 * 4
    assert partial > semaphores > 0


@on_simulated_gpus(gpu="H200")
def test_distances_of_batches_take_a_pair_for_each_batch() -> None:
    one = torch.empty(1, 256, 64, device="cuda", requires_grad=True)
    many = torch.empty(8, 256, 64, device="cuda", requires_grad=True)
    pairs = 8 * 256 * 256 * 64 * 4
    for x, y in ((one, many), (many, one), (many, many)):
        assert pairs in backward_of(torch.cdist(x, y, p=1.0))
        assert pairs not in backward_of(torch.cdist(x, y, p=0.0))


@on_simulated_gpus(gpu="H200")
def test_statistics_over_several_processes_copy_what_has_no_view() -> None:
    x = torch.empty(8, 16, 64, 64, device="cuda")
    inner = x[:, :, 1:-1, 1:-1]
    copy = inner.numel() * 4
    assert requests_of(lambda: torch.batch_norm_stats(inner, 1e-5)) == [copy, 64, 64]
    assert requests_of(lambda: torch.batch_norm_stats(x[1:], 1e-5)) == [64, 64]


@on_simulated_gpus()
def test_layer_norms_return_contiguous_tensors_whatever_the_strides_are() -> None:
    def permuted() -> torch.Tensor:
        return torch.zeros(4, 96, 8, 8, device="cuda").permute(0, 2, 3, 1)

    for layer in (torch.nn.LayerNorm(96).cuda(), torch.nn.RMSNorm(96).cuda()):
        rows = torch.zeros(4, 8, 8, 96, device="cuda", requires_grad=True)
        (gradient,) = torch.autograd.grad(layer(rows), rows, permuted())
        assert gradient.is_contiguous()
        assert layer(permuted()).is_contiguous()


@on_simulated_gpus()
def test_sizes_and_angles_of_complex_numbers_are_complex_at_first() -> None:
    spectrum = torch.zeros(18, 513, 97, device="cuda", dtype=torch.cfloat)
    assert requests_of(spectrum.abs) == [3582792, 7165584]  # as on an H200
    assert requests_of(spectrum.angle) == [3582792, 7165584]
    assert requests_of(spectrum.real.abs) == [3582792]
