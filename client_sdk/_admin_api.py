"""The calls of the API by which a host is looked after."""

from __future__ import annotations

from urllib.parse import quote

from client_sdk import models
from client_sdk._errors import NotFound
from client_sdk._http import Session


class AdminApi:
    """Typed calls over one session; most need a token of admin scope."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def pools(self) -> list[models.Pool]:
        """All pools with their counts and faults."""
        return self.session.call("GET", "/v1/pools", answer=models.PoolList).pools

    def status(self) -> models.HostStatus | None:
        """The host as a whole; None of one whose daemon is too old to tell."""
        try:
            return self.session.call("GET", "/v1/status", answer=models.HostStatus)
        except NotFound:
            return None

    def change_pool(self, name: str, patch: models.PoolPatch) -> models.Pool:
        """Change a pool while it runs."""
        return self.session.call("PATCH", f"/v1/pools/{_part(name)}", answer=models.Pool, body=patch)

    def upgrade(self, name: str) -> models.Pool:
        """Have a pool's image fetched anew."""
        return self.session.call("POST", f"/v1/pools/{_part(name)}/upgrade", answer=models.Pool)

    def tokens(self) -> list[models.Token]:
        """All tokens, without their values."""
        return self.session.call("GET", "/v1/tokens", answer=models.TokenList).tokens

    def create_token(self, request: models.TokenRequest) -> models.NewToken:
        """A new token; its value is in this answer and nowhere else."""
        return self.session.call("POST", "/v1/tokens", answer=models.NewToken, body=request)

    def revoke_token(self, token_id: str) -> None:
        """End a token; leases of its principal go on."""
        self.session.command("DELETE", f"/v1/tokens/{_part(token_id)}")

    def remove_principal(self, name: str) -> None:
        """Remove a principal with all its tokens, and end all its leases."""
        self.session.command("DELETE", f"/v1/principals/{_part(name)}")

    def logs(self, engine_id: str, tail: int) -> list[str]:
        """The last ``tail`` log lines of an engine, oldest first."""
        path = f"/v1/engines/{_part(engine_id)}/logs"
        return self.session.call("GET", path, answer=models.EngineLogs, params={"tail": str(tail)}).lines

    def retire(self, engine_id: str, *, at_once: bool) -> models.Engine:
        """Let an engine go: with its lease, or at once with a fresh one in its place."""
        params = {"now": "true"} if at_once else None
        return self.session.call("POST", f"/v1/engines/{_part(engine_id)}/retire", answer=models.Engine, params=params)

    def events(self, after: int) -> models.EventList:
        """What happened after that number."""
        return self.session.call("GET", "/v1/events", answer=models.EventList, params={"after": str(after)})


def _part(text: str) -> str:
    return quote(text, safe="")
