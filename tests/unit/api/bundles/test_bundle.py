"""Secrets are masked in every text of a bundle, and its structure stays."""

from __future__ import annotations

import json

from keyscale.api.bundles.bundle import masked
from keyscale.jobs.protocol.redaction import Mask

MASK = Mask({"KEYSCALE_JOB_SECRET_DATABASE": "hunter2-and-more"})


def test_known_and_likely_secrets_are_masked_in_every_text_and_name() -> None:
    given = {
        "message": "no access for hunter2-and-more",
        "hunter2-and-more": 1,
        "list": [{"url": "postgres://me:hunter2-and-more@host/db"}, "Authorization: Bearer abcdefghijkl"],
        "api_key": "0123456789",
        "parameters": {"password": "xyz", "input": "/data"},
        "batches": 7,
        "ratio": 0.5,
        "none": None,
    }
    shown = masked(given, MASK)
    text = json.dumps(shown)
    for secret in ("hunter2", "abcdefghijkl", "0123456789", "xyz"):
        assert secret not in text
    assert (shown["batches"], shown["ratio"], shown["none"], shown["parameters"]["input"]) == (7, 0.5, None, "/data")
