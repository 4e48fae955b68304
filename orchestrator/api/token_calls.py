"""Calls about tokens and who they belong to."""

from __future__ import annotations

from flask import Response
from pydantic import Field

from client_sdk import models
from orchestrator.api import views
from orchestrator.api.calls import Calls, Path, answer
from orchestrator.api.services import caller, services
from orchestrator.model import Scope
from orchestrator.store import leases, principals


class TokenPath(Path):
    """Which token: its id, never its value."""

    token_id: str = Field(min_length=1, max_length=200)


class PrincipalPath(Path):
    """Whose."""

    name: models.PrincipalName


def register(calls: Calls) -> None:
    """Add the calls about tokens and principals."""

    @calls.add("post", "/v1/tokens", tag="tokens", scope=Scope.ADMIN, answers={201: models.NewToken})
    def create_token(body: models.TokenRequest) -> Response:
        """Make a token for a principal, who is made if need be; its value is shown this once"""
        parts = services()
        issued = parts.administration.issue(caller(), body)
        parts.tokens.forget()  # quotas may have changed
        return answer(views.new_token(issued.token, issued.value), 201, location=f"/v1/tokens/{issued.token.id}")

    @calls.add("get", "/v1/tokens", tag="tokens", scope=Scope.ADMIN, answers={200: models.TokenList})
    def list_tokens() -> Response:
        """All tokens, without their values"""
        with services().database.read() as db:
            return answer(models.TokenList(tokens=[views.token(token) for token in principals.list_tokens(db)]))

    @calls.add("delete", "/v1/tokens/<token_id>", tag="tokens", scope=Scope.ADMIN, answers={204: None}, refuses=(404,))
    def revoke_token(path: TokenPath) -> Response:
        """Revoke a token; leases of its principal go on"""
        parts = services()
        parts.administration.revoke(caller(), path.token_id)
        parts.tokens.forget()
        return Response(status=204)

    @calls.add("delete", "/v1/principals/<name>", tag="tokens", scope=Scope.ADMIN, answers={204: None}, refuses=(404,))
    def remove_principal(path: PrincipalPath) -> Response:
        """Remove a principal with its tokens, and end all its leases"""
        parts = services()
        parts.administration.remove_principal(caller(), path.name)
        parts.tokens.forget()
        return Response(status=204)

    @calls.add("get", "/v1/whoami", tag="tokens", scope=Scope.READ, answers={200: models.WhoAmI})
    def whoami() -> Response:
        """Who the token is, its quota and what of it is used"""
        who = caller()
        with services().database.read() as db:
            in_use, pending = leases.usage(db, who.principal)
        return answer(
            models.WhoAmI(
                principal=who.principal,
                scope=who.scope,
                max_engines=who.max_engines,
                max_pending=who.max_pending,
                engines_in_use=in_use,
                pending_leases=pending,
            )
        )
