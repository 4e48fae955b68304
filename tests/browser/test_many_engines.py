"""Two hundred engines on one page, all of them leased."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.support.api_server import ApiServer
from tests.support.browser import PHONE, log_in, shoot, visit

ENGINES, LEASES = 200, 5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API whose engines are all leased."""
    server = ApiServer(tmp_path_factory.mktemp("api"), engine_count=ENGINES)
    try:
        server.start()
        with server.client() as client:
            for number in range(LEASES):
                body = {"envs": ENGINES // LEASES, "ttl_s": 600, "note": f"run {number}"}
                assert client.call("POST", "/v1/leases", body)[0] == 201
        yield server
    finally:
        server.stop()


def _url(server: ApiServer) -> str:
    return f"https://127.0.0.1:{server.port}"


def test_two_hundred_engines_on_one_page(server: ApiServer, browser: Browser) -> None:
    """All are there, in under 200 KB for everything that the page loads, nothing of it from elsewhere; and each can be reached."""
    with visit(browser, _url(server)) as page:
        log_in(page, server.admin)
        expect(page.locator("#wall .tile")).to_have_count(ENGINES)
        sizes = page.evaluate(
            "performance.getEntriesByType('navigation').concat(performance.getEntriesByType('resource'))"
            ".filter((one) => !/stream|pictures/.test(one.name)).map((one) => [one.name, one.encodedBodySize])"
        )
        assert all(name.startswith(_url(server)) for name, _ in sizes)
        assert 50_000 < sum(size for _, size in sizes) < 200_000
        expect(page.locator("#pools tbody tr").first.locator("[data-is=leased]")).to_have_text("200")
        expect(page.locator("#leases tbody tr")).to_have_count(LEASES)
        shoot(page, "200-engines")
        page.locator("#all summary").click()
        expect(page.locator("#engines tbody tr")).to_have_count(ENGINES)
        last = page.locator("#wall li").last
        last.scroll_into_view_if_needed()
        last.get_by_role("button").click()
        expect(page.get_by_role("dialog")).to_contain_text("ann, rank 39")


def test_two_hundred_engines_on_a_phone(server: ApiServer, browser: Browser) -> None:
    """Nothing is wider than a phone, tables included."""
    with visit(browser, _url(server), size=PHONE, dark=True) as page:
        log_in(page, server.admin)
        expect(page.locator("#wall .tile")).to_have_count(ENGINES)
        page.locator("#all summary").click()
        expect(page.locator("#engines tbody tr")).to_have_count(ENGINES)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        shoot(page, "200-engines-phone")


def test_a_page_without_room_for_a_stream_looks_now_and_then(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """When other pages hold all the places, it says so and follows all the same."""
    server = ApiServer(tmp_path_factory.mktemp("small"), engine_count=1, server={"streams": 2})
    try:
        server.start()
        with visit(browser, _url(server)) as first, visit(browser, _url(server)) as second, server.client() as client:
            log_in(first, server.admin)
            expect(first.locator("#link")).to_have_text("Live")
            log_in(second, server.admin)
            expect(second.locator("#link")).to_have_text("Every 5 s")
            assert client.call("POST", "/v1/leases", {"envs": 1})[0] == 201
            expect(second.locator("#wall .tile")).to_have_count(1)
    finally:
        server.stop()
