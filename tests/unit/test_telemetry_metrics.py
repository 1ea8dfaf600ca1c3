"""Tests the Prometheus metrics: names, units, and access."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing

import pytest

from plimsoll import InputError
from plimsoll.base.telemetry import metrics as telemetry
from plimsoll.base.telemetry import publisher
from plimsoll.base.telemetry.counter_source import Counters
from plimsoll.base.telemetry.counters import DeviceCounters
from plimsoll.base.telemetry.metrics import (
    Collector,
    MetricsServer,
    metrics,
    parse_place,
    serve_from_environment,
)

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


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("9400", ("127.0.0.1", 9400)),
        ("10.0.0.7:1", ("10.0.0.7", 1)),
        ("node1:65535", ("node1", 65535)),
        ("[::1]:9400", ("::1", 9400)),
    ],
)
def test_a_port_may_have_an_address(text: str, place: tuple[str, int]) -> None:
    assert parse_place(text) == place


@pytest.mark.parametrize(
    "text", ["0", "65536", "-1", ":9400", "9400:", "host", "1" * 5000, "\u0669"]
)
def test_text_without_a_port_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="metrics are served on a port, such as 9400"):
        parse_place(text)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_the_environment_gives_each_rank_a_port_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "_source", FakeSource())
    port = free_port()
    monkeypatch.setenv("PLIMSOLL_METRICS", str(port - 1))
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("LOCAL_RANK", "1")
    serve_from_environment()
    server = telemetry._server
    assert server is not None
    with closing(server):
        assert server.port == port
        assert 'rank="5"' in served(server)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("taken", "no metrics on 127.0.0.1, port"),
        ("no port", "and not on 'many'"),
        ("no package", "pip install 'plimsoll-gpu[metrics]'"),
        ("no address", "no metrics on 192.0.2.1, port"),
    ],
)
def test_a_program_goes_on_without_metrics_that_it_cannot_serve(
    what: str, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        asked = {"no port": "many", "no address": "192.0.2.1:9400"}.get(what, str(port))
        monkeypatch.setenv("PLIMSOLL_METRICS", asked)
        if what == "no package":
            monkeypatch.setitem(sys.modules, "prometheus_client", None)
        serve_from_environment()
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("plimsoll: ")
    assert reason in said


def test_a_worker_of_the_process_gives_up_its_port(server: MetricsServer) -> None:
    def is_open() -> None:
        sys.exit(server._server.socket.fileno() != -1)

    worker = multiprocessing.get_context("fork").Process(target=is_open)
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    assert "plimsoll_process_info" in served(server)
