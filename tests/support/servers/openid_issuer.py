"""A small OpenID Connect issuer, run as a process of its own: `python openid_issuer.py PORT`.

It signs real tokens. Everybody who comes to its authorization endpoint is signed in as the user whom a test has set.
Tests tell it what to do next by `POST /control`: the user's claims, overrides of a token's claims, its algorithm, a
rotation of its key, whether it is down, or to forget all of that.
"""

from __future__ import annotations

import hmac
import json
import sys
import time
import uuid
from base64 import b64decode, urlsafe_b64encode
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

CLIENT_ID, CLIENT_SECRET = "keyscale", "the-clients-secret"


def encoded(content: bytes) -> str:
    return urlsafe_b64encode(content).rstrip(b"=").decode()


class IssuerState:
    """The keys, the pending codes, and what tests have asked for."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.key_requests = 0
        self.rotate()
        self.forget()

    def forget(self) -> None:
        """Forgets what tests have asked for; the key stays, as it takes long to make one."""
        self.user: dict[str, Any] = {"sub": "u-1", "preferred_username": "alice", "groups": ["platform"]}
        self.codes: dict[str, dict[str, str]] = {}
        self.is_down = False
        self.overrides: dict[str, Any] = {}

    def rotate(self) -> None:
        self.key = RSAKey.generate_key(2048, parameters={"kid": uuid.uuid4().hex, "use": "sig", "alg": "RS256"})

    def token(self, claims: dict[str, Any], *, algorithm: str = "RS256") -> str:
        """Returns a token. RS256 is right; `none` and HS256 are what attackers send; `stranger` is another key."""
        now = int(time.time())
        body = {
            "iss": self.url,
            "aud": CLIENT_ID,
            "iat": now,
            "exp": now + 300,
            **self.user,
            **claims,
            **self.overrides,
        }
        body = {name: value for name, value in body.items() if value is not None}
        header = {"alg": algorithm, "kid": self.key.kid, "typ": "JWT"}
        if algorithm in {"none", "HS256"}:
            signed = ".".join(encoded(json.dumps(part).encode()) for part in (header, body))
            public = self.key.as_pem(private=False)  # which everybody has, as the secret of an HMAC
            return f"{signed}.{encoded(hmac.digest(public, signed.encode(), 'sha256')) if algorithm != 'none' else ''}"
        if algorithm == "stranger":
            stranger = RSAKey.generate_key(2048, parameters={"kid": self.key.kid})
            return jwt.encode({**header, "alg": "RS256"}, body, stranger)
        return jwt.encode(header, body, self.key)


class Handler(BaseHTTPRequestHandler):
    state: IssuerState

    def do_GET(self) -> None:
        path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        if self.state.is_down:
            self.answer(503, {})
        elif path == "/.well-known/openid-configuration":
            endpoints = {"authorization_endpoint": "/authorize", "token_endpoint": "/token", "jwks_uri": "/keys"}
            self.answer(
                200, {"issuer": self.state.url, **{key: self.state.url + end for key, end in endpoints.items()}}
            )
        elif path == "/keys":
            self.state.key_requests += 1
            self.answer(200, KeySet([self.state.key]).as_dict(private=False))
        elif path == "/authorize":
            self.authorize({name: values[0] for name, values in query.items()})
        else:
            self.answer(404, {})

    def authorize(self, query: dict[str, str]) -> None:
        assert query["response_type"] == "code", query
        assert query["client_id"] == CLIENT_ID, query
        assert query["code_challenge_method"] == "S256", query
        code = uuid.uuid4().hex
        self.state.codes[code] = query
        self.send_response(302)
        target = f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"
        self.send_header("Location", target)
        self.end_headers()

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if self.path == "/control":
            self.control(json.loads(content))
        elif self.path == "/token":
            self.redeem({name: values[0] for name, values in parse_qs(content.decode()).items()})

    def control(self, settings: dict[str, Any]) -> None:
        state = self.state
        for name in ("user", "overrides", "is_down"):
            if name in settings:
                setattr(state, name, settings[name])
        if settings.get("forget"):
            state.forget()
        if settings.get("rotate"):
            state.rotate()
        token = state.token(settings["claims"], algorithm=settings["algorithm"]) if "claims" in settings else None
        self.answer(200, {"token": token, "key_requests": state.key_requests})

    def redeem(self, form: dict[str, str]) -> None:
        asked = self.state.codes.pop(form.get("code", ""), None)
        credentials = b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode()
        verifier = sha256(form.get("code_verifier", "").encode()).digest()
        is_right = (
            asked is not None
            and credentials == f"{CLIENT_ID}:{CLIENT_SECRET}"
            and encoded(verifier) == asked["code_challenge"]
            and form.get("redirect_uri") == asked["redirect_uri"]
        )
        if not is_right or asked is None:
            self.answer(400, {"error": "invalid_grant"})
            return
        id_token = self.state.token({"nonce": asked["nonce"]})
        self.answer(200, {"id_token": id_token, "access_token": "opaque", "token_type": "Bearer"})

    def answer(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


def main() -> None:
    port = int(sys.argv[1])
    Handler.state = IssuerState(f"http://127.0.0.1:{port}")
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
