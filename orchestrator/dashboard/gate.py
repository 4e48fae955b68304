"""What every request of the dashboard passes: room, session, token, rate, scope, and where it comes from."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from flask import Response, g, request

from client_sdk.models import MAX_BODY_BYTES
from orchestrator.api.problems import BadRequest, WrongMediaType, too_large
from orchestrator.api.services import Services
from orchestrator.auth import LONGEST_TOKEN, RateLimit
from orchestrator.dashboard.ended import Ended
from orchestrator.dashboard.sessions import Session, Sessions, same
from orchestrator.dashboard.strangers import place
from orchestrator.errors import Forbidden, Unauthenticated

CSRF_FIELD, CSRF_HEADER = "csrf", "X-Cornerman-CSRF"
LOGINS_PER_S = 5.0
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Gate:
    """Finds out who a browser is, and lets nothing else through."""

    def __init__(self, services: Services, sessions: Sessions) -> None:
        self._services, self.sessions = services, sessions
        self.ended = Ended(services.database, services.now)
        self._logins = RateLimit(LOGINS_PER_S)

    def enter(self) -> None:
        """Before each request: a place among the server's threads, and the session if there is one."""
        g.place = self._services.lanes.enter(vital=False)
        found = self.sessions.read(request.cookies.get(self.cookie_name))
        over = found is not None and self.is_over(found)
        g.ended = over and found is not None and found.token_sha256 is not None
        g.session = None if over else found
        g.caller = None
        if g.session is not None and g.session.token_sha256 is not None:
            g.caller = self._services.tokens.find(g.session.token_sha256)
            g.token_hash = g.session.token_sha256
            if g.caller is None:
                g.ended, g.session = True, None
            else:
                self._services.rate.take(f"{g.caller.token_id} dashboard")

    def is_over(self, session: Session) -> bool:
        """Whether its time is up, or somebody logged out of it."""
        return self.sessions.is_over(session) or self.ended.has(session)

    def admit(self) -> None:
        """Unauthenticated for a browser that is not logged in."""
        if g.caller is None:
            raise Unauthenticated(
                "Your session has ended: log in again." if g.ended else "Log in first: open this host's front page."
            )

    def leave(self, response: Response) -> Response:
        """After each request: what a browser may do with the answer."""
        response.headers.extend(_HEADERS)
        return response

    # ------------------------------------------------------------ cookies

    @property
    def _is_secure(self) -> bool:
        """Whether the browser came by TLS, ours or that of a proxy before us."""
        return self._services.config.server.tls or request.headers.get("X-Forwarded-Proto", "") == "https"

    @property
    def cookie_name(self) -> str:
        """A name that browsers accept from this very host and over TLS only, where there is TLS."""
        return "__Host-cornerman" if self._is_secure else "cornerman"

    def hand_out(self, response: Response, session: Session) -> Response:
        """Let the browser keep ``session``."""
        response.set_cookie(
            self.cookie_name,
            self.sessions.write(session),
            max_age=round(session.expires_at - self._services.now()),
            path="/",
            secure=self._is_secure,
            httponly=True,
            samesite="Strict",
        )
        return response

    def take_back(self, response: Response) -> Response:
        """Let the browser forget its session."""
        response.delete_cookie(self.cookie_name, path="/", secure=self._is_secure, httponly=True, samesite="Strict")
        return response

    # ------------------------------------------------------------ what changes something

    def check_origin(self, csrf: str | None) -> None:
        """Forbidden unless the request was made by a page of ours: it brings the session's secret, and the browser agrees."""
        session: Session | None = g.session
        site = request.headers.get("Sec-Fetch-Site", "same-origin")
        if session is None or not csrf or not same(csrf, session.csrf) or site not in ("same-origin", "none"):
            raise Forbidden("This did not come from the page as it is now: load it again, and try once more.")

    def form(self) -> dict[str, str]:
        """The fields of a form that was sent; while it is on its way it takes no place from calls."""
        if request.mimetype != "application/x-www-form-urlencoded":
            raise WrongMediaType("The form must be sent as browsers do: application/x-www-form-urlencoded.")
        length = request.content_length
        if length is None or length > MAX_BODY_BYTES:
            raise too_large()
        lanes = self._services.lanes
        g.place.leave()
        with lanes.login(place(request)) if g.caller is None else lanes.body():
            raw = bytes(request.environ["wsgi.input"].read(length)) if length else b""
        g.place = lanes.enter(vital=False)
        try:
            fields = parse_qs(raw.decode("ascii"), keep_blank_values=True, max_num_fields=10, errors="strict")
        except ValueError:
            raise BadRequest("The form cannot be read: load the page again.") from None
        return {name: values[0] for name, values in fields.items()}

    def take_login(self) -> None:
        """Count one attempt to log in; TooMany when there are many from one address."""
        self._logins.take(place(request))


def token_in(text: str) -> str:
    """The token that somebody entered: by itself, or in a connection string."""
    text = text.strip()
    if "://" in text:
        try:
            text = urlsplit(text).username or ""
        except ValueError:
            return ""
    return text if len(text) <= LONGEST_TOKEN else ""
