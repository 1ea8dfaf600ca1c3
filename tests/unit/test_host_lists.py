"""Tests lists of hosts in Slurm's notation, and `plimsoll top`'s status if no host answers."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from plimsoll import InputError
from plimsoll.integrations.top.host_list import hosts_in

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node1", ["node1"]),
        ("me@node[1-3,7]", ["me@node1", "me@node2", "me@node3", "me@node7"]),
        ("node[08-10]", ["node08", "node09", "node10"]),
        ("node[1-2],login,gpu[5]", ["node1", "node2", "login", "gpu5"]),
        ("r[1-2]n[01,3]-ib", ["r1n01-ib", "r1n3-ib", "r2n01-ib", "r2n3-ib"]),
        ("http://node[1-2]:9400", ["http://node1:9400", "http://node2:9400"]),
        ("http://node1/a,b", ["http://node1/a,b"]),
        ("ssh://me@[::1]:22", ["ssh://me@[::1]:22"]),
    ],
)
def test_a_list_of_hosts_is_expanded(text: str, names: list[str]) -> None:
    assert hosts_in(text) == names


@pytest.mark.parametrize("text", ["node[]", "node[3-1]", "node[1-", "node[a-b]", "n[1-2]m[,1]"])
def test_a_list_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match=r"write a list of hosts as node\[1-3,7\]") as found:
        hosts_in(text)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("text", ["n[1-4097]", "n[1-999999999]", "n[1-100]m[1-100]", "a[1-4096],b"])
def test_a_list_without_measure_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="has more than 4096 hosts"):
        hosts_in(text)


@pytest.mark.parametrize(("works", "status"), [((), 2), (("n2",), 0)])
@pytest.mark.parametrize("option", ["--once", "--json"])
def test_top_ends_with_status_two_only_if_no_host_answers(
    option: str,
    works: tuple[str, ...],
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = json.dumps({"schema": 2, "gpus": [], "notes": []})
    tests = " ".join(f"[ $host = {name} ] && echo '{answer}' && exit;" for name in works)
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\nfor host; do {tests} :; done\necho "no route" >&2\nexit 255\n')
    ssh.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    words = [sys.executable, "-m", "plimsoll", "top", option, "--host", "n[1-3]"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout.count("no route") == 3 - len(works)
    assert done.returncode == status
    assert ("none of the hosts answers" in done.stderr) == bool(status)
