from __future__ import annotations

import pickle

import pytest

from jobs import Secret
from jobs.errors import MissingSecretError
from jobs.secret import revealed


def test_a_secret_is_read_from_the_environment_and_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYSCALE_JOB_SECRET_ORDERS", "hidden")
    secret = Secret("ORDERS")
    assert revealed(secret) == "hidden"
    assert "hidden" not in f"{secret!r} {secret}"


def test_a_secret_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEYSCALE_JOB_SECRET_ORDERS", raising=False)
    with pytest.raises(MissingSecretError, match="KEYSCALE_JOB_SECRET_ORDERS"):
        Secret("ORDERS").reveal()


def test_a_pickled_secret_needs_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYSCALE_JOB_SECRET_ORDERS", "hidden")
    pickled = pickle.dumps(Secret("ORDERS"))
    monkeypatch.delenv("KEYSCALE_JOB_SECRET_ORDERS")
    there = pickle.loads(pickled)  # noqa: S301 - its own
    assert there.reveal() == "hidden"
    assert "hidden" not in repr(there)
