"""Tests finding code in articles: code in fences, without fences, and without its indentation."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from tests.snippets import Snippet, read_snippets, snippets

if TYPE_CHECKING:
    from pathlib import Path

FENCED = """# Memory

Take `torch` and run:

```python
import torch
x = torch.ones(3)
```

``` c++
int x = 1;
```

* In a list:

  ``` python
  for _ in range(2):
      del x
  ```

```python
this is no Python
```
"""

BARE = """title: A page
Summary
The following shows it: réserve
import torch
if not torch.cuda.is_available():
print("none")
exit()
# A comment
x = torch.ones(
    3,
)
for _ in range(2):
y = x + 1
print(y)

 \u2022 That was all; torch is great
réserve: mémoire
mémoire
x = 1

    with torch.no_grad():
        z = torch.ones(3)

# The end
"""


def test_fenced_python_is_what_counts() -> None:
    assert snippets(FENCED) == [
        "import torch\nx = torch.ones(3)\n",
        "for _ in range(2):\n    del x\n",
    ]


def test_in_a_page_without_fences_programs_are_found_and_indented() -> None:
    first, second = snippets(BARE)
    assert first.splitlines() == [
        "import torch",
        "if not torch.cuda.is_available():",
        '    print("none")',
        "    exit()",
        "# A comment",
        "x = torch.ones(",
        "    3,",
        ")",
        "for _ in range(2):",
        "    y = x + 1",
        "print(y)",
    ]
    assert second.splitlines() == ["with torch.no_grad():", "    z = torch.ones(3)"]


def test_prose_has_no_snippets() -> None:
    assert snippets("Memory is scarce.\n\nNote: torch\ntorch\nprint(1)\n") == []


@given(st.text("abi t:.(#)='\"\n `") | st.lists(st.sampled_from(BARE.splitlines())).map("\n".join))
def test_whatever_the_text_each_snippet_is_python(text: str) -> None:
    for code in snippets(text):
        ast.parse(code)


def test_a_folder_is_read_in_order_and_other_files_are_left(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text(FENCED)
    (tmp_path / "a.md").write_text("import torch\n")
    (tmp_path / "c.png").write_bytes(b"\xff")
    found = [(snippet.article, snippet.number) for snippet in read_snippets(tmp_path)]
    assert found == [("a", 1), ("b", 1), ("b", 2)]


def test_a_snippet_knows_what_it_lacks() -> None:
    code = """
import time
def step(batch):
    global count
    count = len(batch)
    return model(batch)
for batch in loader:
    print(time.time(), [step(part) for part in batch], __name__)
"""
    assert Snippet("article", 1, code).missing == {"loader", "model"}
