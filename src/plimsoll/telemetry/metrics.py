"""Counters for Prometheus, in base units."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plimsoll.errors import InputError
from plimsoll.telemetry.publisher import source_of_process
from plimsoll.telemetry.torch_counters import TorchCounters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.telemetry.counter_source import CounterSource
    from plimsoll.telemetry.counters import DeviceCounters

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

    Register it where a program has a registry of its own; `metrics` serves one by itself.

    Args:
        source: Where the counters come from; by default what serves this process.
    """

    def __init__(self, source: CounterSource | None = None) -> None:
        self._source = source

    def collect(self) -> Iterator[Any]:
        """All counters now; those that are not known are left out."""
        core = _prometheus().metrics_core
        now = (self._source or source_of_process() or TorchCounters()).read()
        for name, text in _GAUGES.items():
            gauge = core.GaugeMetricFamily(f"plimsoll_{name}", text, labels=["device"])
            for device in now.devices:
                if (value := getattr(device, name)) is not None:
                    gauge.add_metric(_labels(device), value)
            yield gauge
        for name, (short, text) in _COUNTERS.items():
            counter = core.CounterMetricFamily(f"plimsoll_{short}", text, labels=["device"])
            for device in now.devices:
                counter.add_metric(_labels(device), getattr(device, name))
            yield counter
        info = core.InfoMetricFamily("plimsoll_device", "The GPU.", labels=["device"])
        for device in now.devices:
            info.add_metric(_labels(device), {"name": device.name, "uuid": device.uuid})
        yield info
        if now.pinned_bytes is not None:
            yield core.GaugeMetricFamily(
                "plimsoll_pinned_bytes", "Page-locked memory of the host.", value=now.pinned_bytes
            )


class MetricsServer:
    """What `metrics` has started.

    Attributes:
        port: Where it listens.
    """

    def __init__(self, port: int, address: str) -> None:
        prometheus = _prometheus()
        registry = prometheus.CollectorRegistry()
        registry.register(Collector())
        try:
            self._server, self._thread = prometheus.start_http_server(port, address, registry)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"no metrics on {address}, port {port}: {reason}") from None
        self.port = int(self._server.server_port)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def metrics(port: int = 9400, *, address: str = "127.0.0.1") -> MetricsServer:
    """Serve this process's counters to Prometheus, in a thread.

    They are those of plimsoll's allocator, or of PyTorch's own where that serves. Only this machine
    can ask, unless another address is given: the figures are for nobody else by default.

    >>> server = plimsoll.metrics(port=9400)  # doctest: +SKIP

    Args:
        port: Where to listen; 0 finds a free one.
        address: On which of the machine's addresses.

    Raises:
        InputError: If prometheus-client is not installed, or the port cannot be had.
    """
    return MetricsServer(port, address)


def _labels(device: DeviceCounters) -> list[str]:
    return [str(device.index)]


def _prometheus() -> Any:
    try:
        import prometheus_client
    except ImportError:
        raise InputError(
            "metrics need the package prometheus-client: pip install 'plimsoll-gpu[metrics]'"
        ) from None
    return prometheus_client
