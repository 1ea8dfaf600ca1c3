"""Tests plimsoll's rules for Prometheus: a real Prometheus watches programs on simulated GPUs.

Everything runs sixty times as fast: a minute in a rule is a second here.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from plimsoll.base.telemetry.prometheus_files import grafana_dashboard, prometheus_rules
from tests.simulated import PROGRAMS
from tests.waiting import wait_for

pytest.importorskip("torch")
pytest.importorskip("prometheus_client")

WATCHED = PROGRAMS / "telemetry" / "watched.py"
KINDS = ("sound", "leak", "fragments", "full")
EXPECTED = {
    ("PlimsollLeak", "leak"),
    ("PlimsollFragmentation", "fragments"),
    ("PlimsollLittleHeadroom", "full"),
}
CONFIGURATION = """
global: {{scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 1s}}
rule_files: [rules.yml]
scrape_configs:
  - job_name: plimsoll
    static_configs: [{{targets: {targets}}}]
"""


@contextmanager
def running(kind: str) -> Iterator[int]:
    """Runs a program of this kind, and yields the port of its metrics.

    The program's rank is the index of `kind` in KINDS.
    """
    command = [sys.executable, "-m", "plimsoll", "run", "--simulate", "T4", str(WATCHED), kind]
    started = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={
            "RANK": str(KINDS.index(kind)),
            "PLIMSOLL_JOB": "watched",
            **_environment(),
        },
    )
    assert started.stdin is not None
    assert started.stdout is not None
    with started.stdin, started.stdout:
        try:
            yield int(started.stdout.readline())
        finally:
            started.stdin.close()
            started.wait()


def _environment() -> dict[str, str]:
    import os

    return {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}


@contextmanager
def prometheus(folder: Path, ports: list[int]) -> Iterator[str]:
    """Runs a Prometheus server. Yields its address once it has read the metrics at every port."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("Prometheus is not installed (apt: prometheus)")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    rules = re.sub(r"\b(\d+)m\b", r"\1s", prometheus_rules().replace("1h\n", "60m\n"))
    (folder / "rules.yml").write_text(rules)
    targets = json.dumps([f"127.0.0.1:{port}" for port in ports])
    (folder / "prometheus.yml").write_text(CONFIGURATION.format(targets=targets))
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stderr=log) as started:
        try:
            wait_for(lambda: len(_ask_or_none(address, "up == 1") or []) == len(ports))
            yield address
        finally:
            started.terminate()


def ask(address: str, expression: str) -> list[dict[str, Any]]:
    query = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"http://{address}/api/v1/query?{query}", timeout=10) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return found


def _ask_or_none(address: str, expression: str) -> list[dict[str, Any]] | None:
    try:
        return ask(address, expression)
    except OSError:
        return None


def firing(address: str) -> set[tuple[str, str]]:
    found = ask(address, 'ALERTS{alertstate="firing"}')
    return {(one["metric"]["alertname"], KINDS[int(one["metric"]["rank"])]) for one in found}


@pytest.mark.long
def test_alerts_fire_for_what_is_wrong_and_for_nothing_else(tmp_path: Path) -> None:
    with ExitStack() as stack:
        ports = [stack.enter_context(running(kind)) for kind in KINDS]
        address = stack.enter_context(prometheus(tmp_path, ports))
        wait_for(lambda: firing(address) >= EXPECTED, 300)
        seen: set[tuple[str, str]] = set()
        ends = time.monotonic() + 60  # in the rules, 60 s represent an hour
        while time.monotonic() < ends:
            seen |= firing(address)
            time.sleep(1)
        assert seen == EXPECTED
        for panel in json.loads(grafana_dashboard())["panels"]:
            for target in panel["targets"]:
                expression = target["expr"].replace("$__rate_interval", "10s")
                expression = expression.replace("$__range", "1m").replace("$host", ".*")
                expression = expression.replace("$rank", "0|1").replace("$job_id", "watched")
                assert ask(address, expression), expression
