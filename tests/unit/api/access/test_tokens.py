"""Tokens and the hash under which they are stored."""

from __future__ import annotations

import base64

from keyscale.api.access.tokens import new_token, token_sha256


def test_a_token_has_256_random_bits() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert {len(base64.urlsafe_b64decode(token + "=")) for token in tokens} == {32}


def test_a_token_is_stored_as_its_sha256() -> None:
    assert token_sha256("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_token_that_is_no_unicode_has_a_hash_too() -> None:
    assert len(token_sha256("\ud800")) == 64
