"""Offers the counters to Prometheus, in base units, labelled with the job, rank and host."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from multiprocessing.util import register_after_fork
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.base.errors import InputError
from plimsoll.base.printable import printable
from plimsoll.base.process_place import LONGEST_NAME
from plimsoll.base.telemetry.job import place_of_process
from plimsoll.base.telemetry.publisher import source_of_process
from plimsoll.base.telemetry.torch_counters import TorchCounters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.base.telemetry.counter_source import CounterSource
    from plimsoll.base.telemetry.counters import DeviceCounters

METRICS = "PLIMSOLL_METRICS"
"""The environment variable that asks each process for metrics: "9400" or "10.0.0.7:9400"."""
_HERE = "127.0.0.1"
_HIGHEST_PORT = 65535
_server: MetricsServer | None = None  # keeps the server that the environment asked for
_GAUGES = {
    "total_bytes": "Dedicated memory of the GPU.",
    "context_bytes": "Charged by the driver beyond what the allocator reserved.",
    "allocated_bytes": "In live blocks.",
    "active_bytes": "In live blocks, and in freed ones that another stream might still use.",
    "reserved_bytes": "Taken from the driver, in both tiers.",
    "cached_bytes": "Free, and kept for later requests.",
    "fragments_bytes": "Free, in segments that are partly in use.",
    "dedicated_bytes": "Reserved on the card.",
    "shared_bytes": "Reserved in the host's memory.",
    "peak_allocated_bytes": "Most in live blocks since the last reset.",
    "peak_reserved_bytes": "Most taken from the driver since the last reset.",
}
_COUNTERS = {
    "num_alloc_retries": ("alloc_retries", "Times that the cache was given back for a request."),
    "num_ooms": ("ooms", "Requests that failed."),
    "num_spills": ("spills", "Requests that got shared memory."),
}


class Collector:
    """A collector for prometheus_client; reads the counters when Prometheus asks.

    Register it if your program has a Prometheus registry of its own. Otherwise call `metrics`,
    which starts a server.

    Args:
        source: The source of the counters; by default the allocator that serves this process.
        job: The job's name; by default the same as for `metrics`.
    """

    def __init__(self, source: CounterSource | None = None, *, job: str | None = None) -> None:
        if job is not None and not (0 < len(job) <= LONGEST_NAME and job.isprintable()):
            raise InputError(f"a job's name has 1 to {LONGEST_NAME} printable letters")
        self._source = source
        self._job = job

    def collect(self) -> Iterator[Any]:
        """Yields the counters with their present values; leaves out values that are unknown."""
        core = prometheus_package().metrics_core
        source = self._source or source_of_process() or TorchCounters()
        now = source.read()
        shared = self._labels()

        def of(device: DeviceCounters) -> list[str]:
            return [*shared.values(), str(device.index)]

        names = [*shared, "device"]
        for name, text in _GAUGES.items():
            gauge = core.GaugeMetricFamily(f"plimsoll_{name}", text, labels=names)
            for device in now.devices:
                if (value := getattr(device, name)) is not None:
                    gauge.add_metric(of(device), value)
            yield gauge
        for name, (short, text) in _COUNTERS.items():
            counter = core.CounterMetricFamily(f"plimsoll_{short}", text, labels=names)
            for device in now.devices:
                counter.add_metric(of(device), getattr(device, name))
            yield counter
        info = core.InfoMetricFamily("plimsoll_device", "The GPU.", labels=names)
        for device in now.devices:
            info.add_metric(of(device), {"name": device.name, "uuid": device.uuid})
        yield info
        process = core.InfoMetricFamily("plimsoll_process", "The process.", labels=[*shared])
        about = {
            "pid": str(os.getpid()),
            "program": _script(),
            "allocator": source.allocator,
        }
        process.add_metric([*shared.values()], about)
        yield process
        if now.pinned_bytes is not None:
            pinned = core.GaugeMetricFamily(
                "plimsoll_pinned_bytes", "Page-locked memory of the host.", labels=[*shared]
            )
            pinned.add_metric([*shared.values()], now.pinned_bytes)
            yield pinned

    def _labels(self) -> dict[str, str]:
        """Returns the labels for the job, rank and host.

        An unknown value gets no label: to Prometheus, an empty label is the same as no label.
        """
        place = place_of_process()
        job = self._job or place.job
        labels = {"job_id": job, "rank": place.rank, "host": place.host}
        return {name: str(value) for name, value in labels.items() if value is not None}


class MetricsServer:
    """A running server of metrics, as `metrics` returns it.

    Attributes:
        port: The port that it listens on.
    """

    def __init__(self, port: int, address: str, job: str | None = None) -> None:
        prometheus = prometheus_package()
        registry = prometheus.CollectorRegistry()
        registry.register(Collector(job=job))
        try:
            self._server, self._thread = prometheus.start_http_server(port, address, registry)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"no metrics on {address}, port {port}: {reason}") from None
        self.port = int(self._server.server_port)
        # A forked worker inherits the server's socket and may outlive its rank. Unless the worker
        # closes the socket, the rank cannot use the port when it starts again.
        register_after_fork(self, MetricsServer._leave_to_parent)

    def _leave_to_parent(self) -> None:
        self._server.socket.close()

    def close(self) -> None:
        """Stops listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def metrics(port: int = 9400, *, address: str = _HERE, job: str | None = None) -> MetricsServer:
    """Starts a thread that serves this process's counters to Prometheus.

    The counters are those of the allocator that serves the program: plimsoll's or PyTorch's own.
    The server listens on localhost unless another address is given. Labels identify the process:
    `job_id` (Prometheus itself sets `job`), `rank`, `host`, and `device` for counters of one GPU.
    Each process of a host needs its own port, such as 9400 + LOCAL_RANK.

    >>> server = plimsoll.metrics(port=9400)  # doctest: +SKIP

    Args:
        port: The port to listen on; 0 finds a free one.
        address: The address of this machine to listen on.
        job: The job's name; by default PLIMSOLL_JOB in the environment, or the launcher's
            SLURM_JOB_ID, PBS_JOBID, LSB_JOBID or TORCHELASTIC_RUN_ID.

    Raises:
        InputError: If prometheus-client is not installed, the port is not available, or the job's
            name is not valid.
    """
    return MetricsServer(port, address, job)


def parse_place(text: str) -> tuple[str, int]:
    """Returns the address and the port that a user names: "9400", "10.0.0.7:9400", "[::1]:9400".

    Raises:
        InputError: If the text names no port from 1 to 65535.
    """
    address, colon, number = text.rpartition(":")
    is_number = number.isascii() and number.isdecimal() and len(number) < 6
    if not is_number or not 0 < int(number) <= _HIGHEST_PORT or (colon and not address):
        raise InputError(
            f"metrics are served on a port, such as 9400 or 10.0.0.7:9400, and not on {text!r}"
        )
    return address.removeprefix("[").removesuffix("]") or _HERE, int(number)


def serve_from_environment() -> None:
    """Serves this process's counters for as long as it runs, if PLIMSOLL_METRICS names a port.

    A rank adds its local rank to the port. If the server cannot start, prints one line to stderr
    and lets the program go on.
    """
    global _server
    if not (text := os.environ.get(METRICS)):
        return
    try:
        address, port = parse_place(text)
        _server = MetricsServer(port + (place_of_process().local_rank or 0), address)
    except Exception as error:
        with suppress(OSError, ValueError, AttributeError):  # stderr may be closed
            print(printable(f"plimsoll: {error}"), file=sys.stderr)


def _script() -> str:
    """Returns the script's name. Its arguments may be secret, so they stay out of metrics."""
    script, *_ = map(str, getattr(sys, "argv", None) or [""])
    return Path(script).name or "python"


def prometheus_package() -> Any:
    """Imports prometheus_client with its submodules.

    Raises:
        InputError: If prometheus_client is not installed.
    """
    try:
        import prometheus_client
        import prometheus_client.parser
    except ImportError:
        raise InputError(
            "metrics need the package prometheus-client: pip install 'plimsoll-gpu[metrics]'"
        ) from None
    return prometheus_client
