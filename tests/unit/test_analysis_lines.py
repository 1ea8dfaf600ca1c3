"""Tests finding the program's own frame in a stack."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.recordings.analysis import lines as lines_module
from plimsoll.recordings.analysis.lines import (
    NO_LINE,
    last_part,
    renamed,
    source_line,
    source_lines,
)

TORCH = ("/env/lib/python3.12/site-packages/torch/nn/modules/linear.py", 134, "forward")
LIBRARY = ("/env/lib/python3.12/site-packages/transformers/models/llama/modeling.py", 7, "forward")
PROGRAM = ("/home/somebody/train.py", 21, "main")


def test_the_innermost_frame_of_the_user_is_taken() -> None:
    outer = ("/home/somebody/train.py", 99, "<module>")
    assert source_line([TORCH, PROGRAM, TORCH, outer]) == "/home/somebody/train.py:21 main"


def test_the_users_line_comes_first_and_the_innermost_line_of_a_library_behind_it() -> None:
    outer = ("/env/lib/python3.12/site-packages/transformers/trainer.py", 1860, "step")
    assert source_line([TORCH, LIBRARY, TORCH, outer, PROGRAM, outer]) == (
        "/home/somebody/train.py:21 main → transformers/models/llama/modeling.py:7 forward"
    )


def test_a_library_around_the_users_code_is_not_named() -> None:
    assert source_line([TORCH, PROGRAM, LIBRARY]) == "/home/somebody/train.py:21 main"


def test_without_a_frame_of_the_user_the_innermost_line_of_a_library_is_taken() -> None:
    outer = ("/env/lib/python3.12/site-packages/transformers/trainer.py", 1860, "step")
    assert source_line([TORCH, LIBRARY, outer]) == "transformers/models/llama/modeling.py:7 forward"


def test_lines_of_a_library_that_one_line_of_the_user_calls_stay_apart() -> None:
    other = (LIBRARY[0], 9, "forward")
    index, names = source_lines(
        np.array([0, 1], dtype=np.uint32), [[LIBRARY, PROGRAM], [other, PROGRAM]].__getitem__
    )
    assert index.tolist() == [0, 1]
    assert all(name.startswith("/home/somebody/train.py:21 main → ") for name in names)


def test_an_installed_recipe_is_the_users_program() -> None:
    recipe = (
        "/env/lib/python3.12/site-packages/plimsoll/prediction/recipes/scripts/train.py",
        7,
        "main",
    )
    assert source_line([LIBRARY, recipe]).startswith(
        "plimsoll/prediction/recipes/scripts/train.py:7 main → "
    )


def test_each_place_of_a_line_is_renamed() -> None:
    line = source_line([LIBRARY, PROGRAM])
    assert last_part(line) == "train.py:21 main → modeling.py:7 forward"
    assert renamed(NO_LINE, str.upper) == NO_LINE.upper()


def test_a_file_of_the_working_directory_is_named_from_there() -> None:
    assert source_line([(str(Path.cwd() / "a" / "b.py"), 3, "f")]) == str(Path("a/b.py:3 f"))


@pytest.mark.parametrize(
    "filename",
    [
        "/usr/lib/python3.12/threading.py",
        "/usr/lib64/python3.11/contextlib.py",
        "/opt/conda/lib/python3.11/functools.py",
        "C:\\Python312\\Lib\\threading.py",
        "C:\\Python312\\Lib\\site-packages\\torch\\_tensor.py",
        "/usr/lib/python3/dist-packages/torch/_tensor.py",
        "/builds/pytorch/torch/_tensor.py",
        "/env/lib/python3.12/site-packages/triton/runtime/jit.py",
        "/builds/pytorch/aten/src/ATen/native/Linear.cpp",
        "<frozen importlib._bootstrap>",
        "<string>",
        "??",
        "",
        lines_module.__file__,
    ],
)
def test_what_is_not_the_programs(filename: str) -> None:
    assert source_line([(filename, 10, "f"), PROGRAM]) == "/home/somebody/train.py:21 main"
    assert source_line([(filename, 10, "f")]) == NO_LINE


@pytest.mark.parametrize("filename", ["<stdin>", "/tmp/ipykernel_71/1234.py", "D:\\work\\a.py"])
def test_what_is_the_programs_though_it_looks_odd(filename: str) -> None:
    assert source_line([TORCH, (filename, 1, "f")]) == f"{filename}:1 f"


@pytest.mark.parametrize("module", ["torch_geometric.nn.conv.sage_conv_SAGEConv", "__main___Own"])
def test_code_that_pytorch_geometric_writes_is_a_librarys(module: str) -> None:
    written = (f"/tmp/plimsoll-rzjq/temporary/{module}_propagate_rlvsl5jf.py", 229, "propagate")
    called = ("/env/lib/python3.12/site-packages/torch_geometric/utils/_scatter.py", 98, "scatter")
    assert source_line([called, written, PROGRAM]) == (
        "/home/somebody/train.py:21 main → torch_geometric/utils/_scatter.py:98 scatter"
    )
    assert source_line([written, PROGRAM]) == (
        f"/home/somebody/train.py:21 main → {module}_propagate.py:229 propagate"
    )


def test_a_stack_without_frames_has_no_line() -> None:
    assert source_line([]) == NO_LINE
    assert source_line([("/home/somebody/train.py", 0, "main")]) == NO_LINE


def test_many_stacks_share_their_lines() -> None:
    stacks = {0: [], 3: [TORCH, PROGRAM], 5: [PROGRAM], 9: [LIBRARY]}
    numbers = np.array([5, 0, 3, 9, 3], dtype=np.uint32)
    index, names = source_lines(numbers, lambda number: list(stacks[number]))
    assert [names[one] for one in index] == [source_line(stacks[int(one)]) for one in numbers]
    assert len(names) == 3
    assert source_lines(numbers[:0], lambda _: [])[1] == []


@given(st.lists(st.tuples(st.text(), st.integers(-(2**40), 2**40), st.text()), max_size=4))
def test_any_frames_have_a_line_or_none(frames: list[tuple[str, int, str]]) -> None:
    assert source_line(frames)
