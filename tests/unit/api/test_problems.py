"""Errors: all of them are problem documents, whatever was wrong and wherever it was found."""

from __future__ import annotations

import io
import json
import sqlite3
import sys
from typing import Any

import pytest

from client_sdk import models
from orchestrator import logs
from orchestrator.errors import Refused
from tests.support.api import Desk, House, json_of

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    "path", ["/v1", "/v2/leases", "/v1/leases/", "//v1/leases", "/v1//leases", "/\u20ac", "/v1/leases/a/b"]
)
def test_an_unknown_path_is_a_problem(ann: Desk, path: str) -> None:
    """A path where nothing is gets a 404 problem, and never a redirect."""
    ann.refused("GET", path, 404, "no-such-path")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/leases", "GET, HEAD, POST"),
        ("POST", "/v1/leases/x", "DELETE, GET, HEAD"),
        ("GET", "/v1/leases/x/renew", "POST"),
        ("DELETE", "/healthz", "GET, HEAD"),
        ("OPTIONS", "/v1/pools", "GET, HEAD"),
        ("PROPFIND", "/v1/pools/main", "PATCH"),
        ("TRACE", "/", "GET, HEAD"),
    ],
)
def test_a_wrong_method_says_which_are_right(ann: Desk, method: str, path: str, allowed: str) -> None:
    """A method that a path does not take is 405 with Allow."""
    response = ann.send(method, path)
    assert response.status_code == 405
    assert response.headers["Allow"] == allowed
    assert json_of(response)["type"] == "/docs#wrong-method"


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_a_body_of_another_kind_is_refused(ann: Desk, kind: str | None) -> None:
    """A body that does not say that it is JSON is 415, whatever is in it."""
    headers = {} if kind is None else {"Content-Type": kind}
    ann.refused("POST", "/v1/leases", 415, "wrong-media-type", data=b'{"envs": 1}', headers=headers)


def test_json_with_a_charset_is_json(house: House, ann: Desk) -> None:
    """Parameters of the media type are fine."""
    house.add_engines(1)
    headers = {"Content-Type": "application/json; charset=utf-8"}
    ann.call("POST", "/v1/leases", 201, models.Lease, data=b'{"envs": 1}', headers=headers)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  ",
        b"{",
        b"{'envs': 1}",
        b'{"envs": 1}{}',
        b'{"envs": NaN}',
        b'{"envs": 1, "ttl_s": Infinity}',
        b'{"note": "\xff"}',
        b'{"envs": 1, "note": "\\ud800"}',
        b'{"envs": 1, "\\udfff": 1}',
        b"\xff\xfe{\x00}\x00",
        b"[" * 30_000,
        b'{"labels":' * 6_000,
        b'{"envs": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda body: repr(body[:24]),
)
def test_a_body_that_is_not_json_is_refused(ann: Desk, body: bytes) -> None:
    """Broken, empty, endlessly nested or wrongly encoded JSON is 400, never a fault of ours."""
    ann.refused("POST", "/v1/leases", 400, "bad-request", data=body, headers=JSON)


@pytest.mark.parametrize(
    "body", [b"[]", b"null", b"1", b'"x"', b"true", b'"{\\"envs\\": 1}"', b'[{"envs": 1}]'], ids=repr
)
def test_a_body_that_is_not_an_object_is_refused(ann: Desk, body: bytes) -> None:
    """JSON that is not an object, also a doubly encoded one, is 422."""
    ann.refused("POST", "/v1/leases", 422, "unprocessable", data=body, headers=JSON)


def test_a_body_above_64_kib_is_refused(house: House, ann: Desk) -> None:
    """A body of 64 KiB is read; one byte more is 413, told before or found while reading."""
    fits = b'{"envs": 1}'.ljust(models.MAX_BODY_BYTES)
    house.add_engines(1)
    ann.call("POST", "/v1/leases", 201, models.Lease, data=fits, headers=JSON)
    ann.refused("POST", "/v1/leases", 413, "too-large", data=fits + b" ", headers=JSON)
    chunked = {"wsgi.input_terminated": True, "CONTENT_LENGTH": ""}
    stream = io.BytesIO(fits + b" " * 10_000_000)
    headers = {**JSON, "Transfer-Encoding": "chunked"}
    ann.refused("POST", "/v1/leases", 413, "too-large", input_stream=stream, headers=headers, environ_overrides=chunked)
    assert stream.tell() < 2 * models.MAX_BODY_BYTES


def test_a_chunked_body_is_read(house: House, ann: Desk) -> None:
    """A body without a length that is told beforehand is as good."""
    house.add_engines(1)
    environ = {"wsgi.input_terminated": True, "CONTENT_LENGTH": ""}
    headers = {**JSON, "Transfer-Encoding": "chunked"}
    ann.call(
        "POST",
        "/v1/leases",
        201,
        models.Lease,
        input_stream=io.BytesIO(b'{"envs": 1}'),
        headers=headers,
        environ_overrides=environ,
    )


def test_text_is_not_made_into_numbers(ann: Desk) -> None:
    """In a body "2" is not 2: it is refused, with its place."""
    problem = ann.refused("POST", "/v1/leases", 422, "invalid", json={"envs": "2", "extra": 1})
    assert sorted(error["loc"][0] for error in problem.errors or []) == ["envs", "extra"]


def test_a_thousand_faults_are_not_all_listed(ann: Desk) -> None:
    """A problem stays small, however wrong the request is, and does not send the request back."""
    body = {"envs": 1, **{f"{n}" * 200: "secret-value" for n in range(80)}}
    text = ann.send("POST", "/v1/leases", json=body).get_data(as_text=True)
    assert len(text) < 30_000
    assert "secret-value" not in text


@pytest.mark.parametrize(
    "path", ["/v1/whoami?x=1", "/v1/tokens?limit=1", "/v1/pools?name=main", "/healthz?a", "/metrics?x="]
)
def test_a_call_without_query_takes_none(admin: Desk, path: str) -> None:
    """Query parameters where none are known are 422, not ignored."""
    admin.refused("GET", path, 422, "unprocessable")


# ---------------------------------------------------------------- versions


@pytest.mark.parametrize("version", ["1", "1.0", "1.7", " 1 "])
def test_the_same_major_version_is_understood(ann: Desk, version: str) -> None:
    """A client of the same major version is served."""
    assert ann.send("GET", "/v1/whoami", headers={models.VERSION_HEADER: version}).status_code == 200


def test_another_version_says_which_side_to_upgrade(ann: Desk) -> None:
    """Of another major version is 400, with one sentence that names the older side."""
    problem = ann.refused("GET", "/v1/whoami", 400, "version-mismatch", headers={models.VERSION_HEADER: "2"})
    assert problem.detail.endswith("upgrade the daemon on this host.")
    problem = ann.refused("GET", "/v1/whoami", 400, "version-mismatch", headers={models.VERSION_HEADER: "0.9"})
    assert problem.detail.endswith("upgrade the client.")


@pytest.mark.parametrize("version", ["", "one", "-1", "9" * 5000, "\u0661"])
def test_a_version_that_is_none_is_refused(ann: Desk, version: str) -> None:
    """A version header that holds no version is 400."""
    ann.refused("GET", "/v1/whoami", 400, "bad-request", headers={models.VERSION_HEADER: version})


# ---------------------------------------------------------------- our own faults


@pytest.fixture
def log() -> io.StringIO:
    """What the API process writes to its log."""
    stream = io.StringIO()
    logs.configure("debug", stream=stream)
    return stream


def _records(log: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


def test_a_fault_of_ours_tells_nothing_of_the_inside(
    house: House, ann: Desk, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of ours is 500 with a request id and without internals; the log has the traceback under that id."""

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError(f"secret internals {ann.token}")

    monkeypatch.setattr(house.app.services.leasing, "listed", broken)
    response = ann.send("GET", "/v1/leases")
    problem = json_of(response)
    assert (response.status_code, problem["type"]) == (500, "/docs#internal-error")
    assert "secret" not in response.get_data(as_text=True)
    (record,) = _records(log)
    assert record["request_id"] == problem["request_id"]
    assert "ZeroDivisionError" in record["exception"]


def test_what_breaks_before_flask_is_a_problem_too(
    house: House, ann: Desk, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even what breaks outside of any handler leaves as a problem, and in the log under its request id."""

    def broken(_: object) -> None:
        raise ZeroDivisionError("secret internals")

    monkeypatch.setattr(house.app, "request_context", broken)
    response = house.app.test_client().get("/v1/leases")
    assert (response.status_code, response.mimetype) == (500, "application/problem+json")
    assert "secret" not in response.get_data(as_text=True)
    assert _records(log)[0]["request_id"] == json_of(response)["request_id"]
    assert response.headers[models.VERSION_HEADER] == "1"


def test_a_full_disk_is_told_as_such(house: House, ann: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the state cannot be written the answer is 503 with Retry-After and what to do, and nothing is half done."""
    house.add_engines(1)
    ann.call("GET", "/v1/whoami", 200, models.WhoAmI)
    real = house.database._writing

    class Full(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            if sql == "COMMIT":
                raise sqlite3.OperationalError("database or disk is full")
            return super().execute(sql, *parameters)

    full = sqlite3.connect(house.database.path, isolation_level=None, factory=Full)
    full.row_factory = sqlite3.Row
    monkeypatch.setattr(house.database, "_writing", lambda: full)
    problem = ann.refused("POST", "/v1/leases", 503, "unavailable", json={"envs": 1})
    assert "free some space" in problem.detail
    monkeypatch.setattr(house.database, "_writing", real)
    full.close()
    assert ann.call("GET", "/v1/leases", 200, models.LeaseList).leases == []
    assert house.engine("e-0").lease_id is None


def test_a_leaked_token_shows_in_no_log(house: House, ann: Desk, log: io.StringIO) -> None:
    """Tokens that are sent, good or bad, in the header or by mistake elsewhere in a refused request, stay out of the log."""
    token = str(ann.token)
    ann.send("POST", "/v1/leases", data=token.encode(), headers=JSON)
    ann.send("GET", "/v1/whoami")
    house.stranger().send("GET", "/v1/whoami", headers={"Authorization": f"Bearer {token}x"})
    house.stranger().send("GET", "/v1/whoami", headers={"Authorization": f"Basic {token}"})
    assert token not in log.getvalue()


def test_every_refusal_has_a_slug_of_its_own_on_the_docs_page(ann: Desk) -> None:
    """The type of every problem is a place on the page of documentation."""
    page = ann.send("GET", "/docs").get_data(as_text=True)

    def slugs(kind: type[Refused]) -> set[str]:
        return {sub.slug for sub in kind.__subclasses__()} | {s for sub in kind.__subclasses__() for s in slugs(sub)}

    for slug in slugs(Refused):
        assert f'id="{slug}"' in page


def test_the_recursion_limit_is_left_alone(ann: Desk) -> None:
    """A body nested just below the interpreter's limit is refused as well, and not with a fault of ours."""
    for depth in (sys.getrecursionlimit() // 2, sys.getrecursionlimit() - 50, sys.getrecursionlimit()):
        body = b'{"a":' * depth + b"1" + b"}" * depth
        assert ann.send("POST", "/v1/leases", data=body, headers=JSON).status_code in (400, 422)
        body = body.replace(b"1", b'"\\u0041"')
        assert ann.send("POST", "/v1/leases", data=body, headers=JSON).status_code in (400, 422)
