"""A browser without a window: keeps its cookie, knows its form's secret, and holds every answer against what pages may do."""

from __future__ import annotations

import re
from typing import Any

from werkzeug.test import TestResponse

from tests.support.api import PROBLEM, House

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HTTPS = "https://localhost"


class Browser:
    """One visitor of the dashboard."""

    def __init__(self, house: House, *, base_url: str = HTTPS) -> None:
        self.client = house.app.test_client()
        self.base_url = base_url
        self.csrf = ""

    def send(self, method: str, path: str, **more: Any) -> TestResponse:
        """One request, whatever comes of it."""
        response = self.client.open(path, method=method, base_url=self.base_url, **more)
        if response.mimetype != PROBLEM:
            assert response.headers["Content-Security-Policy"] == POLICY
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        return response

    def get(self, path: str, **more: Any) -> TestResponse:
        """Look at something."""
        return self.send("GET", path, **more)

    def page(self) -> str:
        """The front page, whose secret is remembered."""
        text = self.get("/").get_data(as_text=True)
        found = re.search(r'name="csrf" (?:value|content)="([^"]+)"', text)
        assert found is not None
        self.csrf = found.group(1)
        return text

    def log_in(self, token: str | None, **more: Any) -> TestResponse:
        """Fill in the form and send it."""
        self.page()
        response = self.send("POST", "/login", data={"token": token, "csrf": self.csrf}, **more)
        if response.status_code == 303:
            self.page()
        return response

    def order(self, path: str, body: Any, **headers: str) -> TestResponse:
        """What a button of the page does."""
        sent = {"X-Cornerman-CSRF": self.csrf, "Sec-Fetch-Site": "same-origin", **headers}
        return self.send("POST", path, json=body, headers=sent)

    @property
    def cookie(self) -> Any:
        """The cookie that it keeps, or None."""
        return self.client.get_cookie("__Host-cornerman") or self.client.get_cookie("cornerman")
