"""Headless Chromium: Debian's own, driven by Playwright, which downloads nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.support.left_out import leave_out

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
FLAGS = (
    "--no-sandbox",  # tests run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
ARTEFACTS = Path(__file__).resolve().parents[2] / "out" / "browser"
PATIENCE_MS = 20_000
DESKTOP, PHONE = {"width": 1360, "height": 900}, {"width": 390, "height": 844}


def find() -> str:
    """The browser's program; the test is left out when there is none."""
    program = os.environ.get("TESTS_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        leave_out("no Chromium is installed (apt-get install chromium)")
    return program


@contextlib.contextmanager
def launched() -> Iterator[Browser]:
    """A browser, ended with the block."""
    program = find()
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def visit(browser: Browser, url: str, *, size: dict[str, int] | None = None, dark: bool = False) -> Iterator[Page]:
    """A page of a browser with empty pockets; a script's error, or a refusal by the content policy, fails the block."""
    context: BrowserContext = browser.new_context(
        base_url=url,
        ignore_https_errors=True,
        viewport=size or DESKTOP,  # type: ignore[arg-type]
        color_scheme="dark" if dark else "light",
        locale="en-GB",
    )
    context.set_default_timeout(PATIENCE_MS)
    faults: list[str] = []
    page = context.new_page()
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on(
        "console",
        lambda line: faults.append(line.text) if "Content Security Policy" in line.text else None,
    )
    try:
        yield page
    finally:
        context.close()
    assert not faults, faults


def log_in(page: Page, token: str) -> None:
    """From the login page to the dashboard."""
    page.goto("/")
    page.get_by_label("Token or connection string").fill(token)
    page.get_by_role("button", name="Log in").click()


def shoot(page: Page, name: str, *, whole: bool = False) -> Path:
    """Keep a picture of the page as an artefact of the tests."""
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    path = ARTEFACTS / f"{name}.png"
    page.screenshot(path=str(path), full_page=whole)
    return path
