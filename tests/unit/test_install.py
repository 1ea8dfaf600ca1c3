"""Putting plimsoll under PyTorch: what can be said without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import plimsoll
from plimsoll import InputError
from plimsoll.torch.account import make_account

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")
needs_no_cuda = pytest.mark.skipif(torch.version.cuda is not None, reason="PyTorch has CUDA")

AUTOLOAD = "from plimsoll.torch.autoload import autoload; autoload()"


def python(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_an_unknown_allocator_is_refused() -> None:
    with pytest.raises(InputError, match="unknown allocator 'fast'; there are elastic and native"):
        plimsoll.install("fast")  # type: ignore[arg-type]


@needs_no_cuda
def test_a_cpu_build_of_pytorch_is_refused() -> None:
    with pytest.raises(InputError, match="has no CUDA"):
        plimsoll.install()


class TestAutoload:
    def test_nothing_is_imported_unless_it_is_asked_for(self) -> None:
        done = python(f"import sys; {AUTOLOAD}; print(*sys.modules)", PLIMSOLL_ALLOCATOR="")
        assert done.returncode == 0, done.stderr
        loaded = set(done.stdout.split())
        assert "plimsoll.torch.autoload" in loaded
        assert not loaded & {"numpy", "pyarrow", "torch", "plimsoll._core"}

    def test_a_bad_choice_gets_one_line_and_status_2(self) -> None:
        done = python(AUTOLOAD, PLIMSOLL_ALLOCATOR="fast")
        assert done.returncode == 2
        assert done.stderr.splitlines() == [
            "plimsoll: PLIMSOLL_ALLOCATOR is 'fast'; there are elastic, native and torch"
        ]

    @needs_no_cuda
    @pytest.mark.parametrize("allocator", ["elastic", "native", "torch"])
    def test_it_is_silent_where_pytorch_has_no_cuda(self, allocator: str) -> None:
        done = python(AUTOLOAD, PLIMSOLL_ALLOCATOR=allocator, PLIMSOLL_REPORT="1")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", ["predict", "replay"])
def test_functions_are_not_hidden_by_the_packages_of_their_names(name: str) -> None:
    done = python(
        f"import plimsoll.{name}, plimsoll; from plimsoll import {name}\n"
        f"assert callable({name}) and plimsoll.{name} is {name}"
    )
    assert done.returncode == 0, done.stderr


class TestAccount:
    FIGURES: dict[str, Any] = {  # noqa: RUF012
        "peak_allocated_bytes": 3 << 30,
        "peak_reserved_bytes": 4 << 30,
        "card_peak_bytes": 5 << 30,
        "torch_peak_reserved_bytes": 6 << 30,
        "torch_num_ooms": 0,
        "torch_stopped": None,
    }

    def test_a_line_says_it_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RANK", "2")
        assert make_account("elastic", 1, self.FIGURES).line() == (
            "rank 2, GPU 1, the elastic allocator: peak allocated 3.00 GiB, reserved 4.00 GiB, "
            "in use on the card 5.00 GiB; PyTorch's allocator would have reserved 6.00 GiB"
        )

    def test_running_out_of_memory_is_told(self) -> None:
        line = make_account("elastic", 0, {**self.FIGURES, "torch_num_ooms": 1}).line()
        assert line.endswith("PyTorch's allocator would have run out of memory at 6.00 GiB")

    def test_what_is_unknown_is_left_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("RANK", raising=False)
        account = make_account("elastic", 0, {**self.FIGURES, "torch_stopped": "it was too slow"})
        assert account.torch_peak_reserved_bytes is None
        assert account.torch_num_ooms is None
        assert account.rank is None
        assert "PyTorch" not in account.line()

    def test_reports_are_appended_to_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "account.jsonl"
        text = (
            "from plimsoll.torch.account import Account, report_at_exit\n"
            f"report_at_exit(lambda: [Account('torch', None, 7, 0, 1, 2)], {str(path)!r})"
        )
        for _ in range(2):
            assert python(text).returncode == 0
        first, second = map(json.loads, path.read_text().splitlines())
        assert first == second
        assert first["peak_reserved_bytes"] == 2
        assert first["card_peak_bytes"] is None

    def test_processes_of_multiprocessing_report_too(self, tmp_path: Path) -> None:
        path = tmp_path / "script.py"
        path.write_text(
            "import multiprocessing as mp\n"
            "from plimsoll.torch.account import Account, report_at_exit\n"
            "def work(rank):\n"
            "    report_at_exit(lambda: [Account('torch', rank, 7, 0, 1, 2)], '1')\n"
            "if __name__ == '__main__':\n"
            "    process = mp.get_context('spawn').Process(target=work, args=(3,))\n"
            "    process.start()\n"
            "    process.join()\n"
        )
        done = subprocess.run(
            [sys.executable, str(path)], capture_output=True, text=True, check=True
        )
        assert done.stderr.startswith(
            "plimsoll: rank 3, GPU 0, PyTorch's allocator: peak allocated"
        )
