"""Tests that the Prometheus rules and the Grafana dashboard are valid and use existing metrics."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from plimsoll.base.telemetry.metrics import Collector
from plimsoll.base.telemetry.prometheus_files import grafana_dashboard, prometheus_rules
from plimsoll.cli.app import app
from tests.unit.test_telemetry_metrics import FakeSource

CASES = Path(__file__).parents[1] / "data" / "prometheus" / "rules_test.yml"
promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (apt: prometheus)"
)


def exported() -> set[str]:
    prometheus = pytest.importorskip("prometheus_client")
    registry = prometheus.CollectorRegistry()
    registry.register(Collector(FakeSource()))
    return {sample.name for metric in registry.collect() for sample in metric.samples}


def recorded() -> set[str]:
    return set(re.findall(r"record: (\S+)", prometheus_rules()))


def expressions() -> list[str]:
    """Returns the dashboard's Prometheus queries."""
    found = json.loads(grafana_dashboard())
    asked = [target["expr"] for panel in found["panels"] for target in panel["targets"]]
    asked += [each["query"]["query"] for each in found["templating"]["list"][1:]]
    return asked


def names(text: str) -> set[str]:
    return set(re.findall(r"(?:device:)?plimsoll_\w+(?::\w+)?", text))


def test_the_rules_name_only_what_is_exported_or_recorded() -> None:
    lines = re.sub(r"#.*", "", prometheus_rules()).splitlines()
    assert {name for line in lines for name in names(line)} <= exported() | recorded()
    assert len(recorded()) == 3


def test_the_dashboard_names_only_what_is_exported_or_recorded() -> None:
    asked = [names(expression) for expression in expressions()]
    assert all(asked)
    assert set().union(*asked) <= exported() | recorded()
    assert recorded() <= set().union(*asked)


def test_a_name_that_is_not_exported_would_be_noticed() -> None:
    assert not names("rate(plimsoll_nothing_total[5m])") <= exported() | recorded()
    assert names("max(device:plimsoll_headroom:ratio{a=~'b'})") == {
        "device:plimsoll_headroom:ratio"
    }


def test_the_dashboards_panels_lie_beside_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    panels = json.loads(grafana_dashboard())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert taken.isdisjoint(cells)
        assert max(x for x, _ in cells) < 24
        taken |= cells


def unknown(given: Any, kept: Any, at: str = "") -> list[str]:
    """Returns the paths of the parts of `given` that differ in `kept` or are missing there.

    `kept` is what remains of the dashboard `given` after Grafana's own types have read it.
    """
    if isinstance(given, dict) and isinstance(kept, dict):
        lost = [f"{at}.{key}" for key in given.keys() - kept.keys()]
        both = given.keys() & kept.keys()
        return lost + [one for key in both for one in unknown(given[key], kept[key], f"{at}.{key}")]
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        pairs = enumerate(zip(given, kept, strict=True))
        return [one for place, pair in pairs for one in unknown(*pair, f"{at}[{place}]")]
    return [] if given == kept else [at]


def through_grafana(dashboard: dict[str, Any]) -> dict[str, Any]:
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    from grafana_foundation_sdk.cog import plugins
    from grafana_foundation_sdk.cog.encoder import JSONEncoder

    plugins.register_default_plugins()
    kept: dict[str, Any] = json.loads(JSONEncoder().encode(models.Dashboard.from_json(dashboard)))
    return kept


def test_the_dashboard_is_one_of_grafanas() -> None:
    given = json.loads(grafana_dashboard())
    assert unknown(given, through_grafana(given)) == []


@pytest.mark.parametrize("where", ["panels", "targets", "options", "defaults"])
def test_what_is_none_of_grafanas_would_be_noticed(where: str) -> None:
    given = json.loads(grafana_dashboard())
    panel = given["panels"][4]
    place = {
        "panels": panel,
        "targets": panel["targets"][0],
        "options": panel["options"],
        "defaults": panel["fieldConfig"]["defaults"]["custom"],
    }[where]
    place["inexistent"] = 1
    (lost,) = unknown(given, through_grafana(given))
    assert lost.endswith(".inexistent")


def run_promtool(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


@promtool
def test_prometheus_takes_the_rules(tmp_path: Path) -> None:
    (tmp_path / "plimsoll.yml").write_text(prometheus_rules())
    done = run_promtool("check", "rules", "plimsoll.yml", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "7 rules found" in done.stdout


@promtool
def test_each_rule_fires_on_what_it_is_for_and_on_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(prometheus_rules())
    (tmp_path / "rules_test.yml").write_text(CASES.read_text())
    done = run_promtool("test", "rules", "rules_test.yml", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@promtool
def test_a_rule_that_never_fires_would_be_noticed(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(prometheus_rules().replace("< 0.05", "< -1"))
    (tmp_path / "rules_test.yml").write_text(CASES.read_text())
    done = run_promtool("test", "rules", "rules_test.yml", folder=tmp_path)
    assert done.returncode == 1
    assert "PlimsollLittleHeadroom" in done.stdout + done.stderr


@promtool
@pytest.mark.parametrize("expression", expressions())
def test_prometheus_understands_what_the_dashboard_asks(expression: str, tmp_path: Path) -> None:
    if expression.startswith("label_values("):
        expression = expression.removeprefix("label_values(").partition(",")[0]
    expression = expression.replace("$__rate_interval", "1m").replace("$__range", "3h")
    rule = {"record": "checked", "expr": expression}
    text = json.dumps({"groups": [{"name": "dashboard", "rules": [rule]}]})  # YAML contains JSON
    (tmp_path / "asked.yml").write_text(text)
    done = run_promtool("check", "rules", "asked.yml", folder=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("option", "file"), [("--rules", prometheus_rules), ("--dashboard", grafana_dashboard)]
)
def test_the_command_prints_either(option: str, file: Any) -> None:
    done = CliRunner().invoke(app, ["metrics", option])
    assert (done.exit_code, done.stdout) == (0, file())


@pytest.mark.parametrize("options", [[], ["--rules", "--dashboard"]], ids=["none", "both"])
def test_the_command_prints_one_of_them(options: list[str]) -> None:
    done = CliRunner().invoke(app, ["metrics", *options])
    assert "give --rules or --dashboard" in str(done.exception)
