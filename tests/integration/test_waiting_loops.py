"""Tests that a loop ends if it waits for a value unknown to plimsoll; other loops run unchanged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.prediction.predict import predict
from plimsoll.torch.simulated.library import BEYOND_BUDGET
from tests.simulated import PROGRAMS, on_simulated_gpus

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")

MANY = 30_000_000
WAITING = PROGRAMS / "waiting"


class Loop:
    """Counts a loop's iterations. Checks that the memory peak is constant after the fourth one."""

    def __init__(self) -> None:
        self.rounds = 0
        self._peak = 0

    def turn(self) -> None:
        """Notes the start of an iteration."""
        self.rounds += 1
        assert self.rounds < 1000
        if self.rounds == 4:
            self._peak = torch.cuda.max_memory_allocated()

    def check(self) -> None:
        """Checks that the memory peak has not grown since the fourth iteration."""
        assert self.rounds > 0
        if self.rounds > 4:
            assert torch.cuda.max_memory_allocated() == self._peak


def unknown(size: int = MANY) -> Any:
    """Returns random numbers that plimsoll does not compute."""
    return torch.randn(size, device="cuda").sin_()


@on_simulated_gpus()
def test_until_a_residual_is_small() -> None:
    loop = Loop()
    b, x = unknown(), torch.zeros(MANY, device="cuda")
    r = b.clone()
    while r.norm() > 1e-6:
        loop.turn()
        x += 0.1 * r
        r = b - x
    loop.check()


@pytest.mark.long
@on_simulated_gpus()
def test_until_a_loss_is_small() -> None:
    loop = Loop()
    layer = torch.nn.Linear(10_000, 10_000).cuda()
    optimizer = torch.optim.Adam(layer.parameters())
    x = torch.randn(64, 10_000, device="cuda")
    loss = torch.tensor(1e9)
    while loss.item() > 0.01:
        loop.turn()
        loss = layer(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    loop.check()
    assert loop.rounds > 2


@on_simulated_gpus()
def test_until_all_are_done() -> None:
    loop = Loop()
    head = torch.nn.Linear(4096, 50_000).cuda()
    hidden = torch.randn(32, 4096, device="cuda")
    done = torch.zeros(32, dtype=torch.bool, device="cuda")
    while not done.all():
        loop.turn()
        done |= head(hidden).argmax(-1) == 2
    loop.check()


@on_simulated_gpus()
def test_until_a_number_hardly_changes() -> None:
    loop = Loop()
    a = torch.randn(20_000, 20_000, device="cuda")
    x = torch.randn(20_000, device="cuda")
    before = None
    while True:  # the power method for the largest eigenvalue
        loop.turn()
        y = a @ x
        size = y.norm()
        x = y / size
        if before is not None and abs(size.item() - before) < 1e-6 * abs(before):
            break
        before = size.item()
    loop.check()


@on_simulated_gpus()
def test_until_enough_samples_are_accepted() -> None:
    loop = Loop()
    accepted = 0
    while accepted < 3 * MANY:
        loop.turn()
        z = unknown()
        accepted += int((torch.rand(MANY, device="cuda") < torch.exp(-z * z)).sum())
    loop.check()
    assert loop.rounds < 20


@on_simulated_gpus()
def test_until_a_quasi_newton_method_is_content() -> None:
    loop = Loop()
    model = torch.nn.Sequential(torch.nn.Linear(8192, 4096), torch.nn.Linear(4096, 1)).cuda()
    x, y = torch.randn(512, 8192, device="cuda"), torch.randn(512, 1, device="cuda")
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, history_size=2)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    while True:
        loop.turn()
        if optimizer.step(closure).item() < 1e-5:
            break
    assert loop.rounds > 1


@pytest.mark.long
@on_simulated_gpus()
def test_until_nothing_is_active() -> None:
    loop = Loop()
    x = unknown()
    active = (x.abs() > 0.5).sum().item()
    while active > 0:
        loop.turn()
        x = x * 0.5
        active = (x.abs() > 0.5).sum().item()
    loop.check()


@on_simulated_gpus()
def test_until_a_count_is_reached() -> None:
    loop = Loop()
    count = 0
    while count < 5 * MANY:
        loop.turn()
        count = int(unknown().abs().round().sum().item() * MANY)
    loop.check()


@on_simulated_gpus()
def test_until_a_flag_of_the_host_is_set() -> None:
    loop = Loop()
    x = unknown()
    is_done = False
    while not is_done:
        loop.turn()
        x = x * 0.9
        is_done = bool((x > 0.1).cpu()[:8].logical_not().all())
    loop.check()


@on_simulated_gpus()
def test_known_values_never_change() -> None:
    x = torch.tensor(1.0, device="cuda")
    # If a loop waits for an unknown value, plimsoll returns a changed value to end the loop. Here
    # plimsoll knows the value of x, so it must return that value.
    for _ in range(3000):
        x = x * 1.0001
        assert x.item() > 1
    flag = torch.tensor(data=False, device="cuda")
    assert not any(flag.item() for _ in range(100))


@on_simulated_gpus()
def test_conditions_within_a_bounded_loop_never_change() -> None:
    x = unknown()
    for _ in range(50):
        assert bool((x > 0.5).all()) == bool((x > 0.5).all())
        assert (x * 2 > 0.5).all()


@on_simulated_gpus()
def test_what_the_host_was_told_is_what_the_device_has() -> None:
    layer = torch.nn.Linear(5000, 5000).cuda()
    x = torch.randn(8, 5000, device="cuda")
    for _ in range(40):
        loss = layer(x).square().mean()
        told = loss.item()
        assert loss.item() == told
        assert (loss * 2).item() == pytest.approx(2 * told)


@on_simulated_gpus()
@pytest.mark.parametrize("kept_in", ["a buffer of 32 bits", "a copy of 32 bits", "64 bits"])
def test_tokens_that_change_are_tokens_of_the_vocabulary(kept_in: str) -> None:
    embedding = torch.nn.Embedding(32_000, 64, device="cuda")
    head = torch.nn.Linear(64, 32_000, device="cuda")
    chosen = torch.zeros(16, dtype=torch.int64, device="cuda")
    buffer = torch.zeros(1, 9000, dtype=torch.int32, device="cuda")
    loop = Loop()
    while loop.rounds < 100:
        loop.turn()
        with torch.no_grad():
            tokens = head(embedding(chosen)).argmax(-1)
        if kept_in == "a buffer of 32 bits":
            buffer[0, :16].copy_(tokens)
            tokens = buffer[0, :16]
        elif kept_in == "a copy of 32 bits":
            tokens = tokens.int()
        read = tokens.tolist()
        assert all(0 <= token < 32_000 for token in read)
        chosen.copy_(torch.tensor(read))
        if read[0] == -1:
            break


# --- whole predictions ---------------------------------------------------------------------------


@pytest.mark.long
def test_a_value_that_never_comes_ends_the_trial_with_its_answer() -> None:
    found = predict(WAITING / "for_ever.py")
    assert found.stopped is not None
    assert found.stopped.why == "it waits for a value that does not come"
    assert found.stopped.line.endswith("for_ever.py:9 <module>")
    assert found.stopped.steady_since_event < 20 < found.stopped.events
    assert found.fits
    assert found.peak_allocated_bytes > 400_000_000
    assert "so far" in str(found).splitlines()[0]
    assert "\n  stopped at " in str(found)
    said = {assumed.what: assumed.operation for assumed in found.assumptions}
    assert any("a loop waited" in what for what in said)
    assert said[BEYOND_BUDGET] == "aten::normal_"


@pytest.mark.long
def test_a_loop_over_known_values_ends_by_the_bound_alone() -> None:
    found = predict(WAITING / "diverges.py", at_most_events=5000)
    assert found.stopped is not None
    assert "--at-most-events" in found.stopped.why
    assert 5000 <= found.stopped.events < 5100
    assert found.assumptions == []


@pytest.mark.long
def test_an_interrupt_gives_the_answer_so_far(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            # A shell's background jobs ignore SIGINT; env restores it.
            "env", "--default-signal=INT", sys.executable, "-m", "plimsoll", "predict", "--json",
            str(WAITING / "diverges.py"),
        ],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    line = b""
    while b"turning" not in line:
        line = process.stderr.readline()
        assert line
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=100)
    answer = json.loads(output)
    assert answer["stopped"]["why"] == "interrupted"
    assert answer["fits"]
    assert process.returncode == 130  # not 0: the rest of the script might not fit
    assert answer["peak_allocated_bytes"] > 0


@on_simulated_gpus()
def test_an_interrupt_while_the_library_asks_python_reaches_the_program() -> None:
    def ask() -> None:
        with suppress(torch.OutOfMemoryError):
            torch.empty(1 << 50, device="cuda")
        for turn in range(1000):
            print(turn)

    # A shell's background jobs ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.cuda.init()
    torch._C._cuda_attach_out_of_memory_observer(lambda *_: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        ask()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"unknown": "seed:x"}, "a seed is a number, as in seed:1, not 'seed:x'"),
        ({"unknown": "worst"}, "balanced, most, least or seed:N, not 'worst'"),
        ({"values": "some"}, "unknown choice of values 'some'"),
        ({"at_most_events": 0}, "at least 1 event must be allowed, not 0"),
    ],
)
def test_a_bad_choice_is_one_line(options: dict[str, object], said: str) -> None:
    from plimsoll import InputError

    with pytest.raises(InputError, match=said):
        predict(WAITING / "for_ever.py", **options)  # type: ignore[arg-type]


@pytest.mark.long
def test_sizes_that_hang_on_data_are_a_range() -> None:
    found = predict(WAITING / "experts.py")
    assert found.peak_allocated_range_bytes is not None
    assert found.peak_reserved_range_bytes is not None
    least, most = found.peak_allocated_range_bytes
    assert least <= found.requested_bytes < found.peak_allocated_bytes <= most
    # the range is wider than rounding alone explains
    assert least < most - found.by_category["rounding"]
    uneven = predict(WAITING / "experts.py", unknown="most")
    assert uneven.peak_allocated_range_bytes is None
    assert least <= uneven.peak_allocated_bytes <= most


@on_simulated_gpus()
def test_a_long_for_loop_has_an_end_of_its_own() -> None:
    from plimsoll.torch.simulated.program_frames import is_in_open_loop

    lines = [f"    x{i} = i + {i}" for i in range(200)]
    names: dict[str, Any] = {"asked": partial(is_in_open_loop, [__file__])}
    code = ["def run(head):", "  kinds = []", "  for i in range(2):", *lines]
    code += ["    kinds.append(asked())", "  return kinds"]
    exec(compile("\n".join(code), "program.py", "exec"), names)
    assert names["run"](0) == [False, False]


@on_simulated_gpus("--values", "none")
def test_what_is_left_of_a_list_grows_shorter() -> None:
    scores = unknown(3000)
    order = scores.argsort(descending=True)
    while order.numel() > 1:
        first, rest = order[0], order[1:]
        assert 0 <= int(first) < scores.numel()
        order = rest if rest.numel() % 3 else rest[scores[rest] < 2 * scores[first]]


@on_simulated_gpus("--values", "none")
def test_elements_are_read_one_after_the_other() -> None:
    numbers = unknown(2000).argsort()
    assert all(0 <= int(numbers[i]) < 2000 for i in range(2000))
    position = 0
    while position < 2000:
        assert 0 <= int(numbers[position]) < 2000
        position += 1
