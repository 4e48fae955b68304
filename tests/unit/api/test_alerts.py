"""The metrics and the alert rules in deploy/: names by Prometheus' rules, and nothing asked for that is not served."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from orchestrator import certificate_note, metrics, tls
from orchestrator.model import EngineState
from orchestrator.store import meta
from tests.support.api import Desk, House

ROOT = Path(__file__).resolve().parents[3]
RULES = ROOT / "deploy" / "alerts.yml"
OPERATIONS = ROOT / "docs" / "operations.md"
OF_PROMETHEUS = {"up"}
_WORDS = {"and", "by", "on", "sum", "increase", "rate", "time", "or", "unless", "without", "ignoring", "last_over_time"}


def _rules() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(RULES.read_text("utf-8"))["groups"][0]["rules"]
    return found


def _asked(expression: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Each metric that an expression names, with the labels it wants."""
    plain = re.sub(r"\b(?:by|on|without)\s*\([^)]*\)", " ", expression)
    for found in re.finditer(r"([a-zA-Z_:][\w:]*)(?:\{([^}]*)\})?", re.sub(r"\[\w+\]", "", plain)):
        if found[1] not in _WORDS:
            yield found[1], dict(re.findall(r'(\w+)="([^"]*)"', found[2] or ""))


def _served(text: str) -> dict[str, list[Mapping[str, str]]]:
    """The labels of every sample by its name."""
    found: dict[str, list[Mapping[str, str]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


@pytest.fixture
def text(house: House, reader: Desk) -> str:
    """What /metrics serves on a host where nothing has happened yet."""
    tls.ensure(house.config.state_dir, public_host="h.example", now=datetime.now(timezone.utc))
    certificate_note.note(house.database, house.config)
    return reader.send("GET", "/metrics").get_data(as_text=True)


@pytest.mark.parametrize("rule", _rules(), ids=lambda rule: rule["alert"])
def test_a_rule_asks_for_what_is_served(rule: dict[str, Any], text: str) -> None:
    """Every metric and label of the rule is there from the first scrape on, so that also the first rise is seen."""
    served = _served(text)
    asked = list(_asked(rule["expr"]))
    assert asked
    for name, labels in asked:
        if name not in OF_PROMETHEUS:
            assert name in served, f"{rule['alert']} asks for {name}, which is not served"
            assert any(labels.items() <= have.items() for have in served[name]), (name, labels)


def test_labels_that_are_told_of_are_there(text: str) -> None:
    """A summary names only labels that its expression keeps."""
    served = _served(text)
    for rule in _rules():
        told = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) - {"instance"}
        for name, wanted in _asked(rule["expr"]):
            if name in served:
                assert all(told <= set(labels) for labels in served[name] if wanted.items() <= labels.items()), rule
                break


def test_every_alert_is_explained_and_no_other() -> None:
    """docs/operations.md says of each alert what it means and what to do."""
    section = OPERATIONS.read_text("utf-8").split("\n### Alerts\n", 1)[1].split("\n## ", 1)[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [rule["alert"] for rule in _rules()]


def test_every_metric_is_explained_and_no_other(text: str) -> None:
    """docs/operations.md lists each metric there is."""
    section = OPERATIONS.read_text("utf-8").split("\n### Metrics\n", 1)[1].split("\n### ", 1)[0]
    assert set(re.findall(r"^\| `(cornerman_\w+)", section, re.MULTILINE)) == set(_served(text))


def test_names_and_units_are_those_of_prometheus(text: str) -> None:
    """Counters end in _total, a unit is a base unit and comes last, and booleans and counts have none."""
    for family in text_string_to_metric_families(text):
        assert family.documentation.endswith("."), family.name
        for sample in family.samples:
            assert (family.type == "counter") == sample.name.endswith("_total"), sample.name
            assert not re.search(r"_(ms|milliseconds|minutes|kb|mb|percent|count)(_|$)", sample.name), sample.name
        if match := re.search(r"_(seconds|bytes)", family.name):
            assert family.name.endswith(match[0]), family.name


def test_kinds_that_alert_are_counted_from_zero(text: str) -> None:
    """A rule on a kind of event finds its counter before that ever happened."""
    kinds = {labels["kind"] for labels in _served(text)["cornerman_events_total"]}
    assert {kind for group in metrics.ALARMING.values() for kind in group} <= kinds
    source = "\n".join(
        path.read_text("utf-8") for path in (ROOT / "orchestrator").rglob("*.py") if path.name != "metrics.py"
    )
    for kind in kinds - {f"lease.{state}" for state in ("released", "expired", "failed")}:
        assert f'"{kind}"' in source, f"{kind} is counted, but never recorded"
    assert {labels["state"] for labels in _served(text)["cornerman_engines"]} == {
        state.value for state in EngineState if state is not EngineState.GONE
    }


def test_a_certificate_that_is_not_there_is_not_measured(house: House, reader: Desk) -> None:
    """Without TLS, or where nobody noted it, there is no such metric, and no alert of a certificate of 1970."""
    certificate_note.note(house.database, house.config)
    with house.database.read() as db:
        assert meta.get(db, certificate_note.KEY) == ""
    assert "certificate_expiry" not in reader.send("GET", "/metrics").get_data(as_text=True)


def test_the_queue_is_measured_by_its_head(house: House, ann: Desk, reader: Desk) -> None:
    """How long the first in the queue waits, and 0 once nobody does."""
    lease = ann.lease(2, wait=True, status=202)
    house.clock.advance(40)
    assert 'oldest_wait_seconds{pool="main"} 40.0' in reader.send("GET", "/metrics").get_data(as_text=True)
    ann.command("DELETE", f"/v1/leases/{lease.id}")
    assert 'oldest_wait_seconds{pool="main"} 0.0' in reader.send("GET", "/metrics").get_data(as_text=True)
