"""Users of an OpenID Connect issuer.

They sign in to the pages, and use the issuer's tokens as bearer tokens of the API.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import httpx
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from keyscale.certificates import trusted_certificates
from keyscale.db.job_scope import EVERYTHING, JobScope
from keyscale.vocabulary import Role

from ..errors import IssuerUnavailableError, RoleMissingError, TokenMissingError
from .principal import Principal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from joserfc.jwk import KeySetSerialization

    from ..settings import OpenIdSettings

logger = logging.getLogger(__name__)

# Only signatures with a key that the issuer alone has: never `none`, never an HMAC with a public key.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519")
LEEWAY_S = 30
KEYS_AGE_MIN_S = 5.0  # a token with an unknown key makes the control plane ask the issuer, but not more often than this
DOCUMENT_AGE_MAX_S = 3600.0
TOKEN_CHARACTERS_MAX = 16_384
_TIMEOUT_S = 10.0
_ANSWER_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class SignIn:
    """The secrets of a sign-in that has begun.

    The browser keeps them until it comes back from the issuer.

    Attributes:
        state: Comes back in the address, which shows that this browser began the sign-in.
        nonce: Comes back in the ID token, which shows that it was made for this sign-in.
        verifier: Shows the issuer that the requester redeems the code (PKCE).
    """

    state: str
    nonce: str
    verifier: str


class Issuer:
    """One OpenID Connect issuer.

    Its configuration and keys are read when needed, and cached for an hour.
    """

    def __init__(
        self, settings: OpenIdSettings, *, ca_file: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._http = httpx.Client(verify=trusted_certificates(ca_file), timeout=_TIMEOUT_S, follow_redirects=False)
        self._lock = threading.Lock()
        self._configuration: tuple[dict[str, Any], float] | None = None
        self._keys: tuple[KeySet, float] | None = None

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def sign_in_url(self, sign_in: SignIn, redirect_uri: str) -> str:
        """Returns the issuer's address at which a user signs in.

        Raises:
            IssuerUnavailableError: The issuer does not answer as OpenID Connect demands.
        """
        url: str = prepare_grant_uri(
            self._endpoint("authorization_endpoint"),
            client_id=self.settings.client_id,
            response_type="code",
            redirect_uri=redirect_uri,
            scope=self.settings.scopes,
            state=sign_in.state,
            nonce=sign_in.nonce,
            code_challenge=create_s256_code_challenge(sign_in.verifier),
            code_challenge_method="S256",
        )
        return url

    def redeem(self, code: str, sign_in: SignIn, redirect_uri: str) -> Principal:
        """Returns the user for whom the issuer has issued a code.

        Raises:
            IssuerUnavailableError: The issuer does not answer as OpenID Connect demands.
            TokenMissingError: The issuer refuses the code, or its ID token is not valid.
            RoleMissingError: The settings give this user no role.
        """
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "client_id": self.settings.client_id,
            "code_verifier": sign_in.verifier,
        }
        secret = self.settings.client_secret
        try:
            answer = self._http.post(
                self._endpoint("token_endpoint"),
                data=form,
                auth=httpx.BasicAuth(self.settings.client_id, secret) if secret else httpx.USE_CLIENT_DEFAULT,
                headers={"Accept": "application/json"},
            )
        except httpx.HTTPError as error:
            raise IssuerUnavailableError(f"the issuer does not answer: {type(error).__name__}") from error
        if answer.status_code in {400, 401}:
            logger.warning("the issuer refused a code with status %d", answer.status_code)
            raise TokenMissingError("the issuer refused the sign-in")
        document = _json_of(answer)
        token = self._verified(str(document.get("id_token", "")))
        client_id = self.settings.client_id
        claims = CodeIDToken(
            token.claims,
            token.header,
            self._expected(client_id),
            {"nonce": sign_in.nonce, "client_id": client_id, "access_token": document.get("access_token")},
        )
        try:
            claims.validate(leeway=LEEWAY_S)
        except JoseError as error:
            raise _refused(error) from None
        return self._user(claims)

    def authenticate(self, value: str) -> Principal:
        """Returns the user of an issuer's token for the control plane.

        Raises:
            IssuerUnavailableError: The issuer does not answer as OpenID Connect demands.
            TokenMissingError: The token is not valid, has expired, or is not for the control plane.
            RoleMissingError: The settings give this user no role.
        """
        token = self._verified(value)
        try:
            jwt.JWTClaimsRegistry(leeway=LEEWAY_S, **self._expected(self.settings.audience)).validate(token.claims)
        except JoseError as error:
            raise _refused(error) from None
        return self._user(token.claims)

    def _expected(self, audience: str) -> dict[str, Any]:
        return {
            "iss": {"essential": True, "value": self.settings.issuer},
            "aud": {"essential": True, "value": audience},
            "sub": {"essential": True},
            "exp": {"essential": True},
        }

    def _verified(self, value: str) -> jwt.Token:
        """Returns a token with a verified signature.

        Its claims are still to be checked.
        """
        if len(value) > TOKEN_CHARACTERS_MAX:
            raise TokenMissingError("the token is too long")
        try:
            try:
                return jwt.decode(value, self._key_set(), algorithms=list(ALGORITHMS))
            except InvalidKeyIdError:  # the issuer may have a new key
                return jwt.decode(value, self._key_set(age_max_s=KEYS_AGE_MIN_S), algorithms=list(ALGORITHMS))
        except (JoseError, ValueError) as error:
            raise _refused(error) from None

    def _user(self, claims: Mapping[str, Any]) -> Principal:
        found = claims_at(claims, self.settings.role_claim)
        role = role_of(found, self.settings.roles)
        if role is None:
            raise RoleMissingError(f"no value of the claim {self.settings.role_claim} is in KEYSCALE_OIDC_ROLES")
        scope = EVERYTHING if role is Role.ADMIN else scope_of(found, self.settings.job_labels)
        if scope is None:
            raise RoleMissingError(f"no value of the claim {self.settings.role_claim} is in KEYSCALE_OIDC_JOB_LABELS")
        subject = str(claims["sub"])
        name = next((str(claims[key]) for key in ("preferred_username", "email") if claims.get(key)), subject)
        return Principal(
            f"{self.settings.issuer}#{subject}", f"oidc:{name}", role, scope, expires_at_ms=int(claims["exp"]) * 1000
        )

    def _endpoint(self, name: str) -> str:
        with self._lock:
            now = self._clock()
            if self._configuration is None or now - self._configuration[1] > DOCUMENT_AGE_MAX_S:
                document = self._get(f"{self.settings.issuer.rstrip('/')}/.well-known/openid-configuration")
                if document.get("issuer") != self.settings.issuer:
                    raise IssuerUnavailableError("the issuer's configuration names another issuer")
                self._configuration = (document, now)
            found = self._configuration[0].get(name)
        if not isinstance(found, str):
            raise IssuerUnavailableError(f"the issuer's configuration has no {name}")
        return found

    def _key_set(self, age_max_s: float = DOCUMENT_AGE_MAX_S) -> KeySet:
        address = self._endpoint("jwks_uri")
        with self._lock:
            now = self._clock()
            if self._keys is None or now - self._keys[1] > age_max_s:
                try:
                    self._keys = (KeySet.import_key_set(cast("KeySetSerialization", self._get(address))), now)
                except (JoseError, ValueError, KeyError, TypeError) as error:
                    raise IssuerUnavailableError("the issuer's keys cannot be read") from error
            return self._keys[0]

    def _get(self, url: str) -> dict[str, Any]:
        try:
            return _json_of(self._http.get(url))
        except httpx.HTTPError as error:
            raise IssuerUnavailableError(f"the issuer does not answer: {type(error).__name__}") from error


def looks_issued(value: str) -> bool:
    """Returns whether a bearer token has an issuer's form (JWT).

    The control plane's own tokens contain no dots.
    """
    return value.count(".") == 2


def claims_at(claims: Mapping[str, Any], path: str) -> frozenset[str]:
    """Returns the values of a claim, such as `groups`.

    A nested claim is, for example, `realm_access.roles`.
    """
    found: Any = claims
    for part in [path] if path in claims else path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    if isinstance(found, str):
        return frozenset(found.split())
    return frozenset(value for value in found if isinstance(value, str)) if isinstance(found, list) else frozenset()


def role_of(values: frozenset[str], roles: Mapping[str, Role]) -> Role | None:
    """Returns the highest role for these values of the claim.

    The value `*` is every user.
    """
    given = {role for value, role in roles.items() if value in values or value == "*"}
    return next((role for role in (Role.ADMIN, Role.OPERATOR, Role.VIEWER) if role in given), None)


def scope_of(values: frozenset[str], job_labels: Sequence[tuple[str, tuple[str, str] | None]]) -> JobScope | None:
    """Returns the scope of a user with these values of the claim.

    Returns None if the settings give the user no jobs.
    """
    labels = {label for value, label in job_labels if value in values or value == "*"}
    if not job_labels or None in labels:
        return EVERYTHING
    return JobScope(any_labels=frozenset(label for label in labels if label)) if labels else None


def _json_of(answer: httpx.Response) -> dict[str, Any]:
    if not answer.is_success or len(answer.content) > _ANSWER_BYTES_MAX:
        raise IssuerUnavailableError(f"the issuer answered {answer.status_code} to {answer.request.url.path}")
    try:
        document = answer.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise IssuerUnavailableError(f"the issuer did not answer with JSON to {answer.request.url.path}")
    return document


def _refused(error: Exception) -> TokenMissingError:
    # The library's code, such as `expired_token`: the text may quote the token.
    return TokenMissingError(f"the issuer's token is not valid: {getattr(error, 'error', 'decode_error')}")
