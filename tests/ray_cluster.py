"""Starts a Ray cluster of two nodes on this machine. `make test-integrations` installs Ray."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

_START = "from ray.scripts.scripts import main; main()"


@contextmanager
def ray_cluster(nodes: int = 2) -> Iterator[str]:
    """Starts a cluster whose nodes have one core each. Yields its address, on the loopback."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    with ExitStack() as stack:
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        port = address.rpartition(":")[2]
        head = ["--head", f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false"]
        for number in range(nodes):
            _start(stack, Path(folder), number, [f"--address={address}"] if number else head)
        yield address


def _start(stack: ExitStack, folder: Path, number: int, arguments: list[str]) -> None:
    """Starts a node, and waits until it runs. The node ends when `stack` closes."""
    output = folder / f"node-{number}.txt"
    command = [
        sys.executable, "-c", _START, "start", "--block", "--num-cpus=1",
        "--node-ip-address=127.0.0.1", *arguments,
    ]  # fmt: skip
    with output.open("w") as file:
        node = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    stack.callback(node.wait)
    stack.callback(node.terminate)
    wait_for(lambda: "Ray runtime started" in output.read_text() or node.poll() is not None)
    assert node.poll() is None, output.read_text()
