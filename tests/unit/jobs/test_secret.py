from __future__ import annotations

import pickle

import pytest

from keyscale import Secret
from keyscale.jobs.errors import MissingSecretError, SecretNotNamedError
from keyscale.jobs.protocol.restart import FATAL_CODES
from keyscale.jobs.secret import revealed, without_secrets


def test_a_secret_is_read_from_the_environment_and_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYSCALE_JOB_SECRET_ORDERS", "hidden")
    secret = Secret("ORDERS")
    assert revealed(secret) == "hidden"
    assert "hidden" not in f"{secret!r} {secret}"


def test_the_error_of_a_missing_secret_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEYSCALE_JOB_SECRET_ORDERS", raising=False)
    with pytest.raises(MissingSecretError, match="KEYSCALE_JOB_SECRET_ORDERS"):
        Secret("ORDERS").reveal()


def test_a_secret_that_the_job_does_not_name_fails_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEYSCALE_JOB_SECRET_ORDERS", raising=False)
    monkeypatch.setenv("KEYSCALE_REVEALED_NAMES", "STOCK,ORDERS")
    with pytest.raises(MissingSecretError) as gone:
        Secret("ORDERS").reveal()
    monkeypatch.setenv("KEYSCALE_REVEALED_NAMES", "")
    with pytest.raises(SecretNotNamedError) as not_named:
        Secret("ORDERS").reveal()
    assert [error.value.code in FATAL_CODES for error in (gone, not_named)] == [False, True]


def test_a_pickled_secret_needs_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYSCALE_JOB_SECRET_ORDERS", "hidden")
    pickled = pickle.dumps(Secret("ORDERS"))
    monkeypatch.delenv("KEYSCALE_JOB_SECRET_ORDERS")
    there = pickle.loads(pickled)  # noqa: S301 - pickled here
    assert there.reveal() == "hidden"
    assert "hidden" not in repr(there)


def test_secrets_that_a_process_knows_are_masked_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYSCALE_JOB_SECRET_MASKED", "hunter2hunter2")
    pickled = pickle.dumps(Secret("MASKED"))
    monkeypatch.delenv("KEYSCALE_JOB_SECRET_MASKED")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-store")
    pickle.loads(pickled)  # noqa: S301 - pickled here
    assert without_secrets("hunter2hunter2, of-the-store and more") == "*****, ***** and more"


def test_a_setting_that_is_no_secret_is_used_as_it_is() -> None:
    assert revealed("orders") == "orders"


def test_a_secret_that_was_revealed_is_masked_although_its_variable_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYSCALE_JOB_SECRET_GONE", "hunter3hunter3")
    assert Secret("GONE").reveal() == "hunter3hunter3"
    monkeypatch.delenv("KEYSCALE_JOB_SECRET_GONE")
    assert without_secrets("hunter3hunter3") == "*****"
