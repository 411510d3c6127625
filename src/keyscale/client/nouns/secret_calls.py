"""Secrets, without their values."""

from __future__ import annotations

from keyscale.api.secret_labels.schemas import SecretAnswer, SecretLabelsRequest, SecretList

from ..call import Call
from ..method import Method, Noun, S, action


class Secrets(Noun[S]):
    """Names and labels of secrets."""

    @Method
    def list(self) -> Call[SecretList]:
        """Lists the names and labels of the secrets in the user's scope."""
        return Call("GET", "/v1/secrets", SecretList)

    label = action("/v1/secrets/{secret}/labels", SecretLabelsRequest, SecretAnswer, method="PUT")
    """Replaces the labels of a secret."""
