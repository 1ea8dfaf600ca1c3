"""The files with which Prometheus and Grafana watch the metrics: rules and a dashboard."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent / "prometheus"


def prometheus_rules() -> str:
    """Returns Prometheus' recording rules, and its alerts for leaks and other memory problems."""
    return (_FOLDER / "rules.yml").read_text()


def grafana_dashboard() -> str:
    """Returns a dashboard of jobs, hosts and ranks, as JSON that Grafana imports."""
    return (_FOLDER / "dashboard.json").read_text()
