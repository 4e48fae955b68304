"""Logging in and out, and that nobody else sees anything."""

from __future__ import annotations

import pytest

from orchestrator.dashboard import gate, sessions
from orchestrator.model import Scope
from tests.support.api import Desk, House
from tests.support.dashboard import Browser

EVERYTHING = (
    "/dashboard/state",
    "/dashboard/stream",
    "/dashboard/pictures?e=e-0:",
    "/dashboard/engines/e-0",
    "/dashboard/engines/e-0/inside",
)


def test_a_stranger_sees_the_login_page_and_nothing_else(house: House, browser: Browser, ann: Desk) -> None:
    """Without a session the front page is the login page, and everything behind it is refused; so are the page's scripts."""
    house.add_engines(1)
    ann.lease(note="secret note")
    text = browser.page()
    assert "Log in" in text
    for word in ("secret note", "e-0", "main", "ann"):
        assert word not in text.replace("cornerman", "").replace("main>", "").replace('class="main"', "")
    for path in EVERYTHING:
        response = browser.get(path)
        assert (response.status_code, response.mimetype) == (401, "application/problem+json"), path
    assert browser.order("/dashboard/engines/e-0/retire", {"now": True}).status_code == 401
    for name in house.app.dashboard.assets.names:
        status = browser.get(f"/dashboard/static/x/{name}").status_code
        assert status == (200 if name in ("style.css", "mark.svg") else 401), name
    assert house.engine("e-0").state.value == "leased"


def test_every_address_of_the_dashboard_is_tried_by_these_tests(house: House) -> None:
    """A new address must be refused to strangers too, so it must be in the list above."""
    rules = {str(rule) for rule in house.app.url_map.iter_rules() if rule.endpoint.startswith("dashboard.")}
    known = {path.partition("?")[0].replace("e-0", "<engine_id>") for path in EVERYTHING}
    assert rules - known == {
        "/",
        "/login",
        "/logout",
        "/dashboard/static/<version>/<name>",
        "/dashboard/engines/<engine_id>/retire",
    }


def test_a_token_opens_the_page(house: House, browser: Browser, ann: Desk) -> None:
    """The token, alone or in a connection string, begins a session whose cookie no script, other site or plain line gets."""
    assert ann.token is not None
    for text in (ann.token, f"  cornerman://{ann.token}@host:8443?ca=sha256:00 ", f"cornerman+http://{ann.token}@host"):
        visitor = Browser(house)
        response = visitor.log_in(text)
        assert (response.status_code, response.headers["Location"]) == (303, "/")
        cookie = response.headers["Set-Cookie"]
        assert cookie.startswith("__Host-cornerman=")
        assert {"Secure", "HttpOnly", "Path=/", "SameSite=Strict"} <= set(cookie.split("; "))
        assert ann.token not in cookie
        assert 'id="charts"' in visitor.page()
        assert ann.token not in visitor.page()
        assert visitor.get("/dashboard/state").status_code == 200


def test_a_login_is_in_the_event_log(house: House, browser: Browser, admin: Desk) -> None:
    """Who logged in, when, and with which token; never the token's value."""
    browser.log_in(admin.token)
    (told,) = admin.events()
    assert (told.kind, told.actor, told.data) == ("session.opened", "root", {"token": admin.token_id})


@pytest.mark.parametrize("token", ["wrong", "", "x" * 5000, "cornerman://", "http://[", "ünïcode", "a\0b"])
def test_a_wrong_token_is_told_so(browser: Browser, token: str) -> None:
    """The login page comes again and says what is wrong; no session begins."""
    response = browser.log_in(token)
    assert response.status_code == 401
    assert "not known" in response.get_data(as_text=True)
    assert browser.get("/dashboard/state").status_code == 401


def test_a_session_ends_after_its_time(house: House, browser: Browser, ann: Desk) -> None:
    """After twelve hours the page asks to log in again and says why."""
    browser.log_in(ann.token)
    house.clock.advance(sessions.LOGGED_IN_S - 60)
    assert browser.get("/dashboard/state").status_code == 200
    house.clock.advance(60)
    refused = browser.get("/dashboard/state")
    assert refused.status_code == 401
    assert "Your session has ended" in refused.get_data(as_text=True)


def test_a_session_ends_with_its_token(house: House, browser: Browser, ann: Desk, admin: Desk) -> None:
    """A revoked token's sessions are over at once, and the login page says so."""
    browser.log_in(ann.token)
    admin.command("DELETE", f"/v1/tokens/{ann.token_id}")
    assert browser.get("/dashboard/state").status_code == 401
    assert "Your session has ended" in browser.get("/").get_data(as_text=True)


def test_logging_out_ends_the_session_in_this_browser(browser: Browser, ann: Desk) -> None:
    """The cookie is taken back; a log-out that another site ordered is refused."""
    browser.log_in(ann.token)
    assert browser.send("POST", "/logout", data={"csrf": "other"}).status_code == 403
    assert browser.get("/dashboard/state").status_code == 200
    assert browser.send("POST", "/logout", data={"csrf": browser.csrf}).status_code == 303
    assert browser.cookie is None
    assert browser.get("/dashboard/state").status_code == 401


def test_a_copied_cookie_ends_with_its_session(house: House, browser: Browser, ann: Desk, admin: Desk) -> None:
    """Whoever copied the cookie before the log-out has nothing, also of an open stream and after a restart; others stay in."""
    browser.log_in(ann.token)
    other = Browser(house)
    other.log_in(ann.token)
    copy = browser.cookie
    stream = browser.get("/dashboard/stream", buffered=False)
    lines = iter(stream.response)
    next(lines)
    assert b"event: state" in next(lines)
    assert browser.send("POST", "/logout", data={"csrf": browser.csrf}).status_code == 303
    assert list(lines) == []
    stream.close()
    again = gate.Gate(house.app.services, sessions.Sessions(house.app.services.relay_secret, house.clock.now))
    found = again.sessions.read(copy.value)
    assert found is not None
    assert again.is_over(found)
    browser.client.set_cookie(copy.key, copy.value, domain="localhost")
    assert browser.get("/dashboard/state").status_code == 401
    assert "Your session has ended" in browser.get("/").get_data(as_text=True)
    assert other.get("/dashboard/state").status_code == 200
    assert [told.kind for told in admin.events()] == ["session.opened", "session.opened", "session.closed"]


def test_a_full_disk_keeps_nobody_from_looking(house: House, browser: Browser, ann: Desk) -> None:
    """Logging in and out works while nothing can be written: that is when somebody has to look."""
    house.database._writing().execute("PRAGMA query_only = 1")
    assert browser.log_in(ann.token).status_code == 303
    copy = browser.cookie
    assert browser.get("/dashboard/state").status_code == 200
    assert browser.send("POST", "/logout", data={"csrf": browser.csrf}).status_code == 303
    browser.client.set_cookie(copy.key, copy.value, domain="localhost")
    assert browser.get("/dashboard/state").status_code == 401


def test_a_forged_cookie_is_no_session(house: House, browser: Browser, ann: Desk) -> None:
    """A cookie that was changed, made elsewhere, or is no cookie at all opens nothing."""
    browser.log_in(ann.token)
    good = browser.cookie.value
    other = sessions.Sessions(b"another secret", house.clock.now)
    forged = other.write(other.begin("0" * 64))
    for value in (
        good[:-2] + ("AA" if good[-2:] != "AA" else "BB"),
        good.rpartition(".")[0],
        forged,
        "",
        "x" * 3000,
        "a.b",
    ):
        browser.client.set_cookie("__Host-cornerman", value, domain="localhost", path="/", secure=True)
        assert browser.get("/dashboard/state").status_code == 401, value


def test_a_login_must_come_from_our_form(house: House, ann: Desk) -> None:
    """Another site cannot log a visitor in: without the form's secret, or with a browser's word against it, nothing begins."""
    visitor = Browser(house)
    visitor.page()
    for data, headers in (
        ({"token": ann.token}, {}),
        ({"token": ann.token, "csrf": "guessed"}, {}),
        ({"token": ann.token, "csrf": visitor.csrf}, {"Sec-Fetch-Site": "cross-site"}),
    ):
        response = visitor.send("POST", "/login", data=data, headers=headers)
        assert (response.status_code, "try once more" in response.get_data(as_text=True)) == (403, True)
        assert visitor.get("/dashboard/state").status_code == 401
    assert Browser(house).send("POST", "/login", data={"token": ann.token, "csrf": visitor.csrf}).status_code == 403


def test_a_form_is_small_and_a_form(browser: Browser) -> None:
    """What is no form, or a large one, is refused before it is read."""
    browser.page()
    assert browser.send("POST", "/login", json={"token": "x"}).status_code == 415
    assert browser.send("POST", "/login", data={"token": "x" * 70_000}).status_code == 413
    many = {f"f{number}": "x" for number in range(50)}
    assert browser.send("POST", "/login", data=many).status_code == 400


def test_guessing_is_slowed_down(house: House, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """More attempts than a few a second from one address are refused."""
    answers = [browser.send("POST", "/login", data={"token": "x"}) for _ in range(30)]
    statuses = [answer.status_code for answer in answers]
    assert statuses.count(429) >= 30 - 2 * gate.LOGINS_PER_S - 5
    assert statuses[0] == 403
    refused = answers[statuses.index(429)].get_data(as_text=True)
    assert "wait some seconds" in refused
    assert "Log in" in refused


def test_one_place_does_not_keep_the_others_out(house: House, browser: Browser) -> None:
    """Log-ins are counted for each address, behind a proxy on this machine for each address that it names; IPv6 by network."""

    def status(peer: str, forwarded: str = "") -> int:
        headers = {"X-Forwarded-For": forwarded} if forwarded else {}
        base = {"REMOTE_ADDR": peer}
        return browser.send("POST", "/login", data={"token": "x"}, headers=headers, environ_base=base).status_code

    for of_one, of_another in (
        (("203.0.113.7", ""), ("203.0.113.8", "")),
        (("127.0.0.1", "6.6.6.{n}, 198.51.100.7"), ("127.0.0.1", "198.51.100.8")),
        (("2001:db8:0:1::{n}", ""), ("2001:db8:0:2::1", "")),
        (("203.0.113.9", "6.6.6.{n}"), ("::1", "")),
        (("127.0.0.2", "nonsense {n}"), ("::ffff:203.0.113.10", "")),
    ):
        assert 429 in [status(*(text.format(n=number) for text in of_one)) for number in range(30)]
        assert status(*of_another) == 403


def test_without_tls_the_cookie_says_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    """On loopback without TLS the session works too; behind a proxy with TLS the cookie is a secure one."""
    house = House(tmp_path_factory.mktemp("plain"), server={"tls": False, "bind": "127.0.0.1"})
    try:
        desk = house.desk("root", Scope.ADMIN)
        plain = Browser(house, base_url="http://localhost")
        cookie = plain.log_in(desk.token).headers["Set-Cookie"]
        assert cookie.startswith("cornerman=")
        assert "Secure" not in cookie
        assert plain.get("/dashboard/state").status_code == 200
        proxied = Browser(house).get("/", headers={"X-Forwarded-Proto": "https"}).headers["Set-Cookie"]
        assert "Secure" in proxied
    finally:
        house.close()


def test_a_session_tells_nothing_in_a_log() -> None:
    """What a session looks like in a trace gives nobody a session."""
    session = sessions.Session("0" * 64, "secret-csrf", 1.0)
    assert "secret" not in repr(session)
    assert "000" not in repr(session)
