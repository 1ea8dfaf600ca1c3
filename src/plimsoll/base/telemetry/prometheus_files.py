"""Files that other programs need to watch the metrics: Prometheus' rules, Grafana's dashboard."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent / "prometheus"


def prometheus_rules() -> str:
    """Recording rules, and alerts for leaks, fragmentation, little headroom and failed requests."""
    return (_FOLDER / "rules.yml").read_text()


def grafana_dashboard() -> str:
    """A dashboard of jobs, hosts and ranks, as JSON for Grafana's import."""
    return (_FOLDER / "dashboard.json").read_text()
