"""`plimsoll metrics`."""

from __future__ import annotations

from typing import Annotated

import typer

from plimsoll.base.errors import InputError


def metrics(
    rules: Annotated[
        bool,
        typer.Option("--rules", help="Print a file of rules, for Prometheus's setting rule_files."),
    ] = False,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Print a dashboard to import into Grafana.")
    ] = False,
) -> None:
    """Print Prometheus rules or a Grafana dashboard for programs that serve plimsoll's metrics.

    A program serves its metrics if it runs under plimsoll run --metrics, has PLIMSOLL_METRICS in
    its environment, or calls plimsoll.metrics(). The rules alert on leaks, fragmentation, little
    headroom and failed allocations. The dashboard shows all ranks of a job. The dashboard draws
    series that the rules record, so install the rules too.
    """
    from plimsoll.base.telemetry.prometheus_files import grafana_dashboard, prometheus_rules

    if rules == dashboard:
        raise InputError("metrics prints one of two files: give --rules or --dashboard")
    print(prometheus_rules() if rules else grafana_dashboard(), end="")
