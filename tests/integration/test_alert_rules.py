"""Prometheus' own opinion of the metrics and of the alert rules in deploy/."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from orchestrator.model import Scope
from tests.support.api import House
from tests.support.promtool import promtool

RULES = Path(__file__).resolve().parents[2] / "deploy" / "alerts.yml"


def _rules() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(RULES.read_text("utf-8"))["groups"][0]["rules"]
    return found


def _promtool(*arguments: str | Path, text: str | None = None) -> str:
    done = subprocess.run([promtool(), *arguments], input=text, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_promtool_accepts_metrics_and_rules(tmp_path: Path) -> None:
    """Prometheus' linter has nothing to say against the names, and its parser takes every rule."""
    house = House(tmp_path)
    text = house.desk("reader", Scope.READ).send("GET", "/metrics").get_data(as_text=True)
    house.close()
    assert _promtool("check", "metrics", text=text) == ""
    assert f"{len(_rules())} rules found" in _promtool("check", "rules", RULES)


def test_alerts_come_when_they_should_and_only_then(tmp_path: Path) -> None:
    """A full pool is no missing reserve; one that has room and nothing ready is; a first death does not wake anybody."""

    def series(name: str, values: str, **labels: str) -> dict[str, str]:
        inner = ",".join(f'{key}="{value}"' for key, value in {"instance": "h", "job": "cornerman", **labels}.items())
        return {"series": f"{name}{{{inner}}}", "values": values}

    def pool(name: str, *, ready: int, leased: int) -> list[dict[str, str]]:
        return [
            series("cornerman_engines", f"{ready}x60", pool=name, state="ready"),
            series("cornerman_engines", f"{leased}x60", pool=name, state="leased"),
            series("cornerman_pool_min_ready", "2x60", pool=name),
            series("cornerman_pool_max_engines", "8x60", pool=name),
            series("cornerman_pool_paused", "0x60", pool=name),
        ]

    def fires(alert: str, at: str, *labels: dict[str, str]) -> dict[str, Any]:
        rule = next(rule for rule in _rules() if rule["alert"] == alert)
        wanted = [
            {
                "exp_labels": {"instance": "h", **rule["labels"], **one},
                "exp_annotations": {"summary": _filled(rule["annotations"]["summary"], {"instance": "h", **one})},
            }
            for one in labels
        ]
        return {"eval_time": at, "alertname": alert, "exp_alerts": wanted}

    test = {
        "interval": "1m",
        "input_series": [
            *pool("full", ready=0, leased=8),
            *pool("empty", ready=0, leased=3),
            *pool("well", ready=2, leased=3),
            series("cornerman_pool_degraded", "0x60", pool="well"),
            series("cornerman_pool_degraded", "0x5 1x60", pool="broken"),
            series("cornerman_events_total", "0x5 1x60", pool="well", kind="engine.failed"),
            series("up", "1x60"),
        ],
        "alert_rule_test": [
            fires("CornermanNoneReady", "5m"),
            fires("CornermanNoneReady", "15m", {"pool": "empty", "state": "ready", "job": "cornerman"}),
            fires("CornermanPoolFull", "40m", {"pool": "full"}),
            fires("CornermanPoolDegraded", "8m"),
            fires("CornermanPoolDegraded", "20m", {"pool": "broken", "job": "cornerman"}),
            fires("CornermanEnginesDie", "20m"),
            fires("CornermanDown", "30m"),
        ],
    }
    file = tmp_path / "test.json"  # JSON is YAML
    file.write_text(json.dumps({"rule_files": [str(RULES)], "tests": [test]}))
    assert "SUCCESS" in _promtool("test", "rules", file)


def test_a_host_that_stopped_itself_wakes_nobody(tmp_path: Path) -> None:
    """CornermanDown is for hosts that should be there: not for one whose idle stop was due when it went, however long ago."""

    def host(name: str, stops_at: str) -> list[dict[str, str]]:
        labels = f'{{instance="{name}",job="cornerman"}}'
        return [
            {"series": f"up{labels}", "values": "1x30 0x120"},
            {"series": f"cornerman_idle_stop_timestamp_seconds{labels}", "values": stops_at},
        ]

    def down(*names: str) -> list[dict[str, Any]]:
        rule = next(rule for rule in _rules() if rule["alert"] == "CornermanDown")
        return [
            {
                "exp_labels": {"instance": name, "job": "cornerman", **rule["labels"]},
                "exp_annotations": {"summary": _filled(rule["annotations"]["summary"], {"instance": name})},
            }
            for name in names
        ]

    test = {
        "interval": "1m",
        "input_series": [
            *host("stopped", "0x9 1810x20"),  # it went in minute 31, as it had said
            *host("used", "0x3 600x3 0x23"),  # it was to stop once, and was used again
            *host("never", "0x30"),
            *host("crashed", "0x9 2700x20"),  # it had a quarter of an hour left
        ],
        "alert_rule_test": [
            {"eval_time": "20m", "alertname": "CornermanDown", "exp_alerts": []},
            {"eval_time": "36m", "alertname": "CornermanDown", "exp_alerts": down("used", "never", "crashed")},
            {"eval_time": "2h", "alertname": "CornermanDown", "exp_alerts": down("used", "never")},
        ],
    }
    file = tmp_path / "test.json"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "tests": [test]}))
    assert "SUCCESS" in _promtool("test", "rules", file)


def _filled(summary: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"{{ \$labels\.(\w+) }}", lambda found: labels[found[1]], summary)
