"""Calls about the daemon itself, and the OpenAPI document."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from client_sdk import models
from orchestrator import tls
from orchestrator.api.system_calls import CA_FILE
from orchestrator.config import build
from orchestrator.errors import ConfigError
from orchestrator.store import idle_stop, meta, pools
from tests.support.api import Desk, House, json_of


def _health(house: House, path: str) -> tuple[int, bool, str]:
    response = house.stranger().send("GET", path)
    health = models.Health.model_validate_json(response.get_data())
    assert set(json_of(response)) == {"ok", "reason"}
    return response.status_code, health.ok, health.reason


def _set(house: House, key: str, value: str) -> None:
    with house.database.write() as db:
        meta.put(db, key, value)


def test_healthz_says_that_the_api_is_alive(house: House) -> None:
    """/healthz needs no token and says yes while the API can read its state, whatever the pool does."""
    house.clock.advance(1000)
    assert _health(house, "/healthz") == (200, True, "alive")


def test_healthz_says_no_when_the_state_cannot_be_read(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """/healthz and /readyz are 503 when the state cannot be read."""

    def broken() -> None:
        raise OSError

    house.database.close()
    monkeypatch.setattr(house.database, "path", Path("/nonexistent/cornerman.db"))
    assert _health(house, "/healthz") == (503, False, "state-unreadable")
    assert _health(house, "/readyz") == (503, False, "state-unreadable")


def test_readyz_says_whether_a_lease_could_be_given(house: House) -> None:
    """/readyz needs no token and tells yes, or no with a slug: nothing of pools, images or faults."""
    assert _health(house, "/readyz") == (200, True, "ready")
    house.clock.advance(10)
    assert _health(house, "/readyz") == (503, False, "pool-process-silent")
    _set(house, "pool_alive_at", repr(house.clock.now()))
    assert _health(house, "/readyz") == (200, True, "ready")

    _set(house, "host_fault", "the engine host does not answer: start it")
    assert _health(house, "/readyz") == (503, False, "engine-host-unreachable")
    house.add_engines(1)
    assert _health(house, "/readyz") == (200, True, "ready")
    _set(house, "host_fault", "")


def test_readyz_looks_at_every_pool(house: House) -> None:
    """One pool that could lease is enough; all degraded without spares, or all paused, is not ready."""
    with house.database.write() as db:
        for name in ("main", "other"):
            pools.note_fault(db, name, again=True, fault="no image", retry_at=0, now=0)
    assert _health(house, "/readyz") == (503, False, "pools-degraded")
    house.add_engines(1, pool="other")
    assert _health(house, "/readyz") == (200, True, "ready")
    with house.database.write() as db:
        for name in ("main", "other"):
            pools.update(db, name, min_ready=0, max_engines=4, image="engine:1", paused=True)
    assert _health(house, "/readyz") == (503, False, "pools-paused")


def test_metrics_count_by_pool_and_never_by_lease(house: House, ann: Desk, reader: Desk) -> None:
    """/metrics is Prometheus text with counts by pool and state and counters by kind; no lease, holder or engine in it."""
    house.add_engines(2)
    lease = ann.lease(labels={"run": "private"})
    ann.lease(2, wait=True, status=202)
    response = reader.send("GET", "/metrics")
    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    text = response.get_data(as_text=True)
    for secret in (lease.id, "ann", "e-0", "private"):
        assert not re.search(rf"\b{re.escape(secret)}\b", text)
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found[("cornerman_engines", "leased", "main")] == 1
    assert found[("cornerman_engines", "main", "ready")] == 1
    assert found[("cornerman_engines", "other", "ready")] == 0
    assert found[("cornerman_leases", "active", "main")] == 1
    assert found[("cornerman_leases", "main", "pending")] == 1
    assert found[("cornerman_events_total", "lease.granted", "main")] == 1
    assert found[("cornerman_pool_max_engines", "main")] == 4
    assert found[("cornerman_lease_wait_seconds_total", "main")] == 0
    labels = {name for family in text_string_to_metric_families(text) for s in family.samples for name in s.labels}
    assert labels <= {"pool", "state", "kind", "version"}


def test_counters_outlive_the_api_process(house: House, ann: Desk) -> None:
    """Counters never fall, also when the API process is started again."""
    house.add_engines(1)
    ann.lease()
    house.restart()
    assert 'cornerman_events_total{kind="lease.granted",pool="main"} 1.0' in ann.send("GET", "/metrics").get_data(True)


def test_the_cas_certificate_is_handed_out(house: House) -> None:
    """/ca.pem gives the CA's certificate to anybody: clients hold it against the hash in their connection string."""
    file = house.config.state_dir / CA_FILE
    file.parent.mkdir(parents=True)
    file.write_text("-----BEGIN CERTIFICATE-----\n")
    response = house.stranger().send("GET", "/ca.pem")
    assert (response.status_code, response.get_data()) == (200, file.read_bytes())


def test_there_is_no_ca_to_hand_out_with_a_brought_certificate(tmp_path: Path) -> None:
    """With a certificate that others signed, or without TLS, /ca.pem is 404."""
    brought = {"certificate": str(tmp_path / "c"), "key": str(tmp_path / "k")}
    servers: list[dict[str, Any]] = [brought, {"tls": False, "bind": "127.0.0.1"}, {}]
    for number, server in enumerate(servers):
        house = House(tmp_path / str(number), server=server)
        house.stranger().refused("GET", "/ca.pem", 404, "not-found")
        house.close()


def test_the_server_takes_the_files_that_init_made_or_those_brought(tmp_path: Path) -> None:
    """A brought certificate is used, else the one made by 'cornerman init'; without it the way out is told."""
    pool = {"main": {"runtime": "fake"}}
    own = build({"state_dir": str(tmp_path), "pools": pool})
    with pytest.raises(ConfigError, match="cornerman init"):
        tls.serving(own)
    files = tls.files(own.state_dir)
    files.certificate.parent.mkdir()
    files.certificate.touch()
    files.key.touch()
    assert tls.serving(own) == (files.certificate, files.key)
    assert own.state_dir / CA_FILE == files.ca
    brought = {"certificate": str(tmp_path / "c"), "key": str(tmp_path / "k")}
    other = build({"state_dir": str(tmp_path), "server": brought, "pools": pool})
    assert tls.serving(other) == (tmp_path / "c", tmp_path / "k")


def test_answers_are_not_kept_by_anybody_between(house: House, ann: Desk) -> None:
    """What is told to a token is kept by no cache."""
    assert ann.send("GET", "/v1/whoami").headers["Cache-Control"] == "no-store"
    assert house.stranger().send("GET", "/readyz").headers["Cache-Control"] == "no-store"


# ---------------------------------------------------------------- the OpenAPI document


def _document(house: House) -> dict[str, Any]:
    document: dict[str, Any] = json_of(house.stranger().send("GET", "/openapi.json"))
    return document


def test_the_document_describes_every_call(house: House) -> None:
    """Every call, and no other, is in the OpenAPI document, of version 3.1 or later, with its scope and a summary."""
    document = _document(house)
    assert tuple(map(int, document["openapi"].split("."))) >= (3, 1, 0)
    described = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    served = {
        (method, re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", str(rule)))
        for rule in house.rules()
        for method in (rule.methods or set()) - {"HEAD"}
    }
    assert described == served
    for item in document["paths"].values():
        for operation in item.values():
            assert operation["summary"]
            assert bool(operation.get("security")) == ("x-scope" in operation)


def test_the_document_describes_every_refusal_as_a_problem(house: House) -> None:
    """Errors are described as problem documents, and none as anything else."""
    for path, item in _document(house)["paths"].items():
        for operation in item.values():
            statuses = operation["responses"]
            assert {"400", "422", "429", "500", "503"} <= set(statuses)
            for status, answer in statuses.items():
                if int(status) >= 400 and path not in ("/healthz", "/readyz"):
                    assert list(answer["content"]) == ["application/problem+json"], (path, status)


def test_the_documents_schemas_are_the_contracts(house: House) -> None:
    """The schemas are those of the wire models, with all their bounds, and every reference leads somewhere."""
    document = _document(house)
    schemas = document["components"]["schemas"]
    request = schemas["LeaseRequest"]
    assert request["additionalProperties"] is False
    assert list(request["properties"]["labels"]["patternProperties"].values()) == [{"maxLength": 255, "type": "string"}]
    assert request["properties"]["labels"]["maxProperties"] == 64
    assert schemas["NewToken"]["properties"]["token"] == {"title": "Token", "type": "string"}
    for name in re.findall(r"#/components/schemas/(\w+)", str(document)):
        assert name in schemas


def test_the_page_needs_no_script(house: House) -> None:
    """/docs is one page without scripts, under a policy that allows none."""
    response = house.stranger().send("GET", "/docs")
    page = response.get_data(as_text=True)
    assert response.mimetype == "text/html"
    assert "<script" not in page
    assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")
    for name in ("/v1/leases/{lease_id}/renew", "LeaseRequest", "Idempotency-Key", "pool-exhausted"):
        assert name in page


def test_schemas_are_made_once(house: House, ann: Desk) -> None:
    """Making schemas costs too much to be done at each request."""
    from orchestrator.api.lease_calls import WaitQuery

    assert WaitQuery.model_json_schema() is WaitQuery.model_json_schema()
    ann.refused("GET", "/v1/leases/x?wait_s=0", 404, "not-found")


def test_the_api_process_loads_no_more_than_it_serves_with() -> None:
    """The API process carries neither the SDK's client nor what only the pool or 'cornerman init' needs."""
    heavy = ["requests", "urllib3", "docker", "grpc", "cryptography", "websockets", "zstandard", "numpy"]
    program = f"import sys, orchestrator.api.server; print(*[name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


# ---------------------------------------------------------------- the host as a whole


def test_the_status_tells_of_the_host_as_a_whole(house: House, ann: Desk) -> None:
    """/v1/status counts leases over all pools and says what is wrong with the engine host."""
    house.add_engines(1)
    ann.lease()
    ann.lease(2, wait=True, status=202)
    _set(house, "host_fault", "Docker does not answer")
    told = ann.call("GET", "/v1/status", 200, models.HostStatus)
    assert (told.active_leases, told.pending_leases, told.fault) == (1, 1, "Docker does not answer")
    assert (told.idle_after_s, told.idle_stop) == (None, None)
    assert told.now.timestamp() == house.clock.now()
    house.stranger().refused("GET", "/v1/status", 401, "unauthenticated")


def test_the_status_tells_when_an_unused_host_stops(house: House, reader: Desk) -> None:
    """Since when nobody uses it, when it stops, and whether that was announced."""
    now = house.clock.now()
    with house.database.write() as db:
        idle_stop.put(db, idle_stop.IdleStop(since=now - 60, stops_at=now + 240, announced=True))
    stop = reader.call("GET", "/v1/status", 200, models.HostStatus).idle_stop
    assert stop is not None
    assert ((stop.stops_at - stop.since).total_seconds(), stop.announced) == (300, True)
