"""The dashboard in headless Chromium, on a real daemon whose engines are played; screenshots go to out/browser."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import grpc
import pytest
from playwright.sync_api import Browser, Page, expect

from client_sdk import Cornerman, Lease
from client_sdk._url import parse
from orchestrator.auth import digest
from orchestrator.dashboard.sessions import Sessions
from orchestrator.relay_token import ensure_secret
from tests.support.browser import PHONE, log_in, shoot, visit
from tests.support.play import Game, over_grpc
from tests.support.real_daemon import RealDaemon, set_up
from tests.support.waiting import wait_until

# DIAMBRA's client leaves the file of its games open.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file .*integratedGames:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO.*integratedGames"),
]

GAMES = ("doapp", "sfiii3n")
HEALS_MS = 30_000
NASTY = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDaemon]:
    """A daemon with three practice engines ready."""
    environ = {"CORNERMAN_PRACTICE_FPS": "published"}
    folder = tmp_path_factory.mktemp("host")
    daemon = set_up(folder, "--runtime", "process", "--min-ready", "3", "--max-engines", "8", environ=environ)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.close()


@dataclass
class Players:
    """Threads that play on each engine of a lease, and begin anew when theirs is replaced."""

    lease: Lease
    stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Players:
        places = zip(self.lease.addresses, GAMES, strict=False)
        self._threads = [threading.Thread(target=self._play, args=place) for place in places]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join(30)

    def _play(self, address: str, game_id: str) -> None:
        game = Game(over_grpc(address), game_id=game_id, frame_shape=(0, 0, 0))
        while not self.stop.is_set():
            with contextlib.suppress(grpc.RpcError):
                game.make()
                game.reset()
                while not self.stop.wait(0.1):
                    game.step()
            self.stop.wait(0.2)


@contextlib.contextmanager
def played(host: RealDaemon, *, note: str = "", envs: int = 2) -> Iterator[Lease]:
    """A lease of games that go on."""
    client = Cornerman(host.url, quiet=True)
    with client.lease(envs=envs, via="tunnel", timeout_s=60, note=note) as lease, Players(lease):
        yield lease


def address(host: RealDaemon) -> str:
    """Where the dashboard is."""
    return f"https://127.0.0.1:{host.port}"


def drawn(page: Page, place: str) -> str:
    """What a canvas shows now."""
    return str(page.locator(place).evaluate("canvas => canvas.toDataURL()"))


def no_overflow(page: Page) -> None:
    """Nothing is wider than the window."""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_visitor_without_a_good_token_stays_outside(host: RealDaemon, browser: Browser) -> None:
    """The login page alone is shown; a wrong token is told so; the token of a connection string opens the page."""
    with visit(browser, address(host)) as page:
        log_in(page, "wrong")
        expect(page.get_by_role("alert")).to_contain_text("not known")
        shoot(page, "login-wrong-token")
        page.get_by_label("Token or connection string").fill(host.admin_url)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Playing now")).to_be_visible()
        expect(page.locator("#link")).to_have_text("Live")
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("button", name="Log in")).to_be_visible()
        page.go_back()
        expect(page.get_by_role("button", name="Log in")).to_be_visible()


def test_a_lease_appears_plays_and_goes(host: RealDaemon, browser: Browser) -> None:
    """Without a reload: the lease with its holder and note, a picture that changes, its speed, and its end; on desktop and phone."""
    with visit(browser, address(host)) as page:
        log_in(page, host.admin_url)
        expect(page.locator("#no-leases")).to_be_visible()
        with played(host, note=f"run 14 {NASTY}"):
            row = page.locator("#leases tbody tr")
            expect(row).to_contain_text("notebook")
            expect(row).to_contain_text(f"run 14 {NASTY}")  # as text
            expect(row.locator('[data-is="until"]')).to_contain_text("in ")
            tiles = page.locator("#wall .tile")
            expect(tiles).to_have_count(2)
            expect(tiles.first).to_contain_text("doapp")
            page.wait_for_selector("#wall li:first-child canvas[data-drawn]")
            first = drawn(page, "#wall li:first-child canvas")
            wait_until(
                lambda: drawn(page, "#wall li:first-child canvas") != first, 20, what="another picture", poll_s=0.2
            )
            expect(tiles.first.locator(".health").first).to_have_attribute("aria-valuenow", re.compile(r"\d+"))
            expect(page.locator("#pools tbody tr [data-is=leased]")).to_have_text("2")
            expect(row.locator('[data-is="rate"]')).to_have_text(re.compile(r"[1-9]"), timeout=20_000)
            shoot(page, "desktop", whole=True)
            for name, dark in (("phone", False), ("phone-dark", True)):
                with visit(browser, address(host), size=PHONE, dark=dark) as phone:
                    log_in(phone, host.admin_url)
                    phone.wait_for_selector("#wall canvas[data-drawn]")
                    no_overflow(phone)
                    shoot(phone, name)
        expect(page.locator("#no-wall")).to_be_visible()
        expect(page.locator("#no-leases")).to_be_visible()
        expect(page.locator("#events")).to_contain_text("lease.released")


def test_nobody_looks_and_nothing_is_asked(host: RealDaemon, browser: Browser) -> None:
    """Pictures are asked for while their tiles can be seen, and not below the edge of the window."""
    with visit(browser, address(host), size={"width": 900, "height": 220}) as page, played(host, envs=1):
        asked: list[float] = []
        page.on("request", lambda request: asked.append(time.monotonic()) if "/pictures" in request.url else None)
        log_in(page, host.admin_url)
        expect(page.locator("#wall .tile")).to_have_count(1)
        page.wait_for_timeout(1500)
        assert asked == []
        page.locator("#wall .tile").scroll_into_view_if_needed()

        def several() -> bool:
            page.wait_for_timeout(100)  # Playwright tells of requests while it is called
            return len(asked) > 2

        wait_until(several, 20, what="pictures are asked for")


def test_one_engine_by_keyboard(host: RealDaemon, browser: Browser) -> None:
    """Enter opens it, with picture, CPU, memory, log and history; Escape leads back to where one was."""
    with visit(browser, address(host), dark=True) as page, played(host):
        log_in(page, host.admin_url)
        tile = page.locator("#wall .tile").first
        expect(tile).to_contain_text("doapp")
        tile.focus()
        page.keyboard.press("Enter")
        box = page.get_by_role("dialog")
        expect(box).to_contain_text("doapp")
        expect(box.locator('[data-key="CPU"] dd')).to_contain_text("% of a core")
        expect(box.locator('[data-key="Memory"] dd')).to_contain_text("MB")
        expect(box.locator("#e-log")).to_contain_text("Server listening on")
        expect(box.locator("#e-past")).to_contain_text("engine.leased")
        page.wait_for_selector("#e-picture:not([data-drawn='0'])")
        assert page.locator("#e-picture").evaluate("canvas => [canvas.width, canvas.height]") == [512, 480]
        assert "#engine/e-" in page.url
        no_overflow(page)
        shoot(page, "engine-dark")
        page.keyboard.press("Escape")
        expect(box).to_be_hidden()
        expect(tile).to_be_focused()


def test_a_killed_engine_heals_in_view(host: RealDaemon, browser: Browser) -> None:
    """Another engine takes the dead one's rank, its game begins anew in the picture, and the log tells why."""
    with visit(browser, address(host)) as page, played(host) as lease:
        log_in(page, host.admin_url)
        tiles = page.locator("#wall li")
        expect(tiles).to_have_count(2)
        engine_id = lease.model.envs[0].engine_id
        assert engine_id is not None
        expect(page.locator(f'#wall li[data-key="{engine_id}"]')).to_contain_text("rank 0")
        page.wait_for_selector(f'#wall li[data-key="{engine_id}"] canvas[data-drawn]')
        os.kill(_pid_of(host, lease, 0), signal.SIGKILL)
        expect(page.locator(f'#wall li[data-key="{engine_id}"]')).to_have_count(0, timeout=HEALS_MS)
        expect(tiles).to_have_count(2, timeout=HEALS_MS)
        expect(tiles.first).to_contain_text("rank 0")
        page.wait_for_selector("#wall li:first-child canvas[data-drawn]", timeout=HEALS_MS)
        expect(page.locator("#events")).to_contain_text("lease.engine_replaced")
        shoot(page, "healed", whole=True)


def test_an_administrator_replaces_an_engine(host: RealDaemon, browser: Browser) -> None:
    """Two clicks, so that none is by mistake; the engine is replaced, and the page says who did it."""
    with visit(browser, address(host)) as page, played(host, envs=1) as lease:
        log_in(page, host.admin_url)
        engine_id = lease.model.envs[0].engine_id
        page.locator(f'#wall li[data-key="{engine_id}"] button').click()
        page.get_by_role("button", name="Replace now").click()
        page.get_by_role("button", name="Really?").click()
        expect(page.get_by_role("dialog")).to_contain_text("administrator admin retired it", timeout=HEALS_MS)
        page.get_by_role("button", name="Close").click()
        expect(page.locator(f'#wall li[data-key="{engine_id}"]')).to_have_count(0, timeout=HEALS_MS)
        expect(page.locator("#wall li")).to_have_count(1, timeout=HEALS_MS)


def test_a_holder_sees_its_own_and_no_buttons(host: RealDaemon, browser: Browser) -> None:
    """With a token of lease scope there is nothing to retire, and nobody else's lease."""
    made = host.run("token", "create", "zoe", environ={"CORNERMAN_URL": host.admin_url})
    assert made.returncode == 0, made.stderr
    with played(host, envs=1), visit(browser, address(host)) as page:
        log_in(page, made.stdout.strip().splitlines()[-1])
        expect(page.locator("#no-leases")).to_be_visible()
        expect(page.locator("#pools tbody tr [data-is=leased]")).to_have_text("1")
        expect(page.locator("#wall .tile")).to_have_count(0)
        with visit(browser, address(host)) as mine:
            log_in(mine, host.url)
            mine.locator("#wall .tile").first.click()
            expect(mine.get_by_role("dialog")).to_contain_text("notebook, rank 0")
            expect(mine.locator("#e-do button")).to_have_count(0)


def test_a_session_that_runs_out_leads_to_the_login(host: RealDaemon, browser: Browser) -> None:
    """When its time is up under an open page, the page becomes the login page and says why."""
    sessions = Sessions(ensure_secret(host.config.state_dir), time.time)
    token = parse(host.admin_url).token.get_secret_value()
    session = replace(sessions.begin(digest(token)), expires_at=time.time() + 8)
    with visit(browser, address(host)) as page:
        page.context.add_cookies(
            [{"name": "__Host-cornerman", "value": sessions.write(session), "url": address(host), "secure": True}]
        )
        page.goto("/")
        expect(page.get_by_role("button", name="Log out")).to_be_visible()
        expect(page.get_by_role("alert")).to_contain_text("Your session has ended", timeout=HEALS_MS)
        shoot(page, "session-ended")


def test_a_revoked_token_leads_to_the_login(host: RealDaemon, browser: Browser) -> None:
    """When its token is revoked under an open page, the page becomes the login page at once."""
    made = host.run("token", "create", "yan", environ={"CORNERMAN_URL": host.admin_url})
    with visit(browser, address(host)) as page:
        log_in(page, made.stdout.strip().splitlines()[-1])
        expect(page.locator("#link")).to_have_text("Live")
        with host.admin() as (admin, _):
            (token,) = [token for token in admin.tokens() if token.principal == "yan"]
            admin.revoke_token(token.id)
        expect(page.get_by_role("alert")).to_contain_text("Your session has ended", timeout=HEALS_MS)


def _pid_of(host: RealDaemon, lease: Lease, rank: int) -> int:
    """The process of a lease's engine."""
    port = str(lease.model.envs[rank].address).rpartition(":")[2]
    (pid,) = (pid for pid, line in host.family().items() if f"--port {port}" in line)
    return pid
