"""Tokens of users."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.api.access_tokens.schemas import NewTokenAnswer, TokenList, TokenRequest, UserAnswer

from ..call import Call
from ..method import Method, Noun, S, creation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyscale.vocabulary import Role


class Tokens(Noun[S]):
    """Tokens of users."""

    create = creation("/v1/tokens", TokenRequest, NewTokenAnswer)
    """Creates a token; only the answer has its value."""

    @Method
    def list(self, *, role: Sequence[Role] | None = None) -> Call[TokenList]:
        """Lists all tokens without their values, the newest first."""
        return Call("GET", "/v1/tokens", TokenList, query={"role": role})

    @Method
    def revoke(self, token_id: str) -> Call[None]:
        """Revokes a token, with its sessions and its subscriptions."""
        return Call("DELETE", "/v1/tokens/{token_id}", None, {"token_id": token_id})

    @Method
    def whoami(self) -> Call[UserAnswer]:
        """Shows the name, role and scope of the client's own token."""
        return Call("GET", "/v1/whoami", UserAnswer)
