"""Tests the Prometheus metrics: names, units, and access."""

from __future__ import annotations

import os
import socket
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing

import pytest

from plimsoll import InputError
from plimsoll.base.telemetry import publisher
from plimsoll.base.telemetry.counter_source import Counters
from plimsoll.base.telemetry.counters import DeviceCounters
from plimsoll.base.telemetry.metrics import Collector, MetricsServer, metrics

prometheus = pytest.importorskip("prometheus_client")


class FakeSource:
    allocator = "native"

    def read(self) -> Counters:
        first = DeviceCounters(0, False, "H100", "ab", *range(100, 1500, 100))
        second = DeviceCounters(
            1, False, "H100", "cd", None, None, None, 1, 1, 1, None, 0, 0, 1, 1, 0, 0, 0
        )
        return Counters((first, second), pinned_bytes=42)


def samples() -> dict[tuple[str, str], float]:
    registry = prometheus.CollectorRegistry()
    registry.register(Collector(FakeSource()))
    return {
        (sample.name, sample.labels.get("device", "")): sample.value
        for metric in registry.collect()
        for sample in metric.samples
    }


def test_every_quantity_has_its_base_unit_in_its_name() -> None:
    found = samples()
    assert found["plimsoll_allocated_bytes", "0"] == 400
    assert found["plimsoll_reserved_bytes", "0"] == 600
    assert found["plimsoll_alloc_retries_total", "0"] == 1200
    assert found["plimsoll_ooms_total", "0"] == 1300
    assert found["plimsoll_spills_total", "0"] == 1400
    assert found["plimsoll_pinned_bytes", ""] == 42
    assert {name.rsplit("_", 1)[1] for name, _ in found} == {"bytes", "total", "info"}


def test_what_is_unknown_is_left_out() -> None:
    found = samples()
    assert ("plimsoll_context_bytes", "0") in found
    assert ("plimsoll_context_bytes", "1") not in found
    assert ("plimsoll_fragments_bytes", "1") not in found


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetricsServer]:
    monkeypatch.setattr(publisher, "_source", FakeSource())
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("PLIMSOLL_JOB", "llama")
    made = metrics(0)
    yield made
    made.close()


def served(server: MetricsServer) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
        return str(answer.read().decode())


def test_the_process_own_counters_are_served(server: MetricsServer) -> None:
    text = served(server)
    place = f'host="{socket.gethostname()}",job_id="llama"'
    assert f'plimsoll_allocated_bytes{{device="0",{place},rank="3"}} 400.0' in text
    device = f'{{device="0",{place},name="H100",rank="3",uuid="ab"}}'
    assert f"plimsoll_device_info{device} 1.0" in text
    process = f'{{allocator="native",{place},pid="{os.getpid()}",program='
    assert f"plimsoll_process_info{process}" in text
    assert f'plimsoll_pinned_bytes{{{place},rank="3"}} 42.0' in text
    assert "python_info" not in text


def test_a_job_that_is_given_is_the_one_that_counts(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(metrics(0, job="mine")) as other:
        assert 'job_id="mine"' in served(other)
        assert "llama" not in served(other)
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("PLIMSOLL_JOB")
    text = served(server)
    assert f'plimsoll_allocated_bytes{{device="0",host="{socket.gethostname()}"}}' in text


def test_arguments_are_nobodys_business(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/home/me/train.py", "--token", "secret"])
    text = served(server)
    assert 'program="train.py"' in text
    assert "secret" not in text


@pytest.mark.parametrize("job", ["", "x" * 256, "a\nb"], ids=["empty", "long", "two lines"])
def test_a_job_without_a_name_is_refused(job: str) -> None:
    with pytest.raises(InputError, match="a job's name has 1 to 255 printable letters"):
        metrics(0, job=job)


def test_only_this_machine_can_ask(server: MetricsServer) -> None:
    assert server._server.server_address[0] == "127.0.0.1"


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"no metrics on 127.0.0.1, port {port}"):
            metrics(port)


@pytest.mark.parametrize("port", [-1, 70_000])
def test_a_port_that_is_none_is_refused(port: int) -> None:
    with pytest.raises(InputError, match="no metrics on"):
        metrics(port)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(InputError, match=r"pip install 'plimsoll-gpu\[metrics\]'"):
        metrics(0)
