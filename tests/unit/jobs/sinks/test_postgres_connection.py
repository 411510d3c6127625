"""An error of PostgreSQL is an outage, a missing right or a refusal by its state, and quotes no data."""

from __future__ import annotations

from typing import Any, Self

import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from keyscale.jobs.errors import SinkForbiddenError, SinkRowsRefusedError, SinkUnavailableError
from keyscale.jobs.sinks import postgres_connection
from keyscale.jobs.sinks.postgres_connection import connected, errors_without_data, is_of_rows, transaction

URL = "postgresql://ada:pass7@db/shop"


@pytest.mark.parametrize(
    ("error", "expected", "of_rows"),
    [
        (psycopg.OperationalError("no route for row 7"), SinkUnavailableError, False),
        (errors.AdminShutdown("row 7"), SinkUnavailableError, False),
        (errors.ConnectionFailure("row 7"), SinkUnavailableError, False),
        (errors.DeadlockDetected("row 7"), SinkUnavailableError, False),
        (errors.DiskFull("row 7"), SinkUnavailableError, False),
        (errors.LockNotAvailable("row 7"), SinkUnavailableError, False),
        (errors.ReadOnlySqlTransaction("row 7"), SinkUnavailableError, False),
        (errors.IdleInTransactionSessionTimeout("row 7"), SinkUnavailableError, False),
        (errors.InvalidPassword("row 7"), SinkUnavailableError, False),
        (errors.InsufficientPrivilege("row 7"), SinkForbiddenError, False),
        (errors.UniqueViolation("row 7"), SinkRowsRefusedError, True),
        (errors.NumericValueOutOfRange("row 7"), SinkRowsRefusedError, True),
        (errors.WithCheckOptionViolation("row 7"), SinkRowsRefusedError, True),
        (errors.RaiseException("row 7"), SinkRowsRefusedError, True),
        (psycopg.DataError("row 7"), SinkRowsRefusedError, True),
        (errors.UndefinedTable("row 7"), SinkRowsRefusedError, False),
        (errors.InFailedSqlTransaction("row 7"), SinkRowsRefusedError, False),
    ],
)
def test_an_error_is_told_by_its_state_without_its_text(
    error: psycopg.Error, expected: type[Exception], of_rows: bool
) -> None:
    with pytest.raises(expected) as raised, errors_without_data(URL):
        raise error
    assert type(raised.value) is expected
    assert type(error).__name__ in str(raised.value)
    assert (error.sqlstate or "") in str(raised.value)
    assert "row 7" not in str(raised.value)
    assert "pass7" not in str(raised.value)
    assert (raised.value.__cause__, raised.value.__suppress_context__) == (None, True)
    assert is_of_rows(error) is of_rows


@pytest.mark.parametrize(("url", "user"), [(URL, "ada"), ("postgresql://db/shop", "of the environment")])
def test_a_missing_right_names_the_user(url: str, user: str) -> None:
    with (
        pytest.raises(SinkForbiddenError, match=f"^PostgreSQL refuses user {user}: Insufficient"),
        errors_without_data(url),
    ):
        raise errors.InsufficientPrivilege


def test_a_connection_notices_a_server_that_is_gone_as_soon_as_its_address_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[dict[str, Any]] = []
    monkeypatch.setattr(psycopg, "connect", lambda text: opened.append(conninfo_to_dict(text)))
    connected(URL, application_name="a b")
    connected(f"{URL}?connect_timeout=3&keepalives_count=9", options="-c x=1")
    own: dict[str, Any] = {"user": "ada", "password": "pass7", "host": "db", "dbname": "shop"}
    deadlines = {
        "connect_timeout": 10,
        "keepalives_idle": 20,
        "keepalives_interval": 5,
        "keepalives_count": 4,
        "tcp_user_timeout": 40_000,
    }
    given = {"connect_timeout": 3, "keepalives_count": 9, "options": "-c x=1"}
    wanted: list[dict[str, Any]] = [own | deadlines | {"application_name": "a b"}, own | deadlines | given]
    assert [{name: str(value) for name, value in each.items()} for each in opened] == [
        {name: str(value) for name, value in each.items()} for each in wanted
    ]


def test_a_transaction_has_the_name_of_its_session_and_fails_like_its_statements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[Any] = []

    class Connection:
        def __enter__(self) -> Self:
            return self

        def __exit__(self, kind: object, *_: object) -> None:
            calls.append(kind)
            if kind is None:
                raise errors.UniqueViolation

    def opened(*given: object, **named: object) -> Connection:
        calls.append((given, named))
        return Connection()

    monkeypatch.setattr(postgres_connection, "connected", opened)
    with pytest.raises(SinkRowsRefusedError, match="UniqueViolation"), transaction(URL, "session"):
        pass
    assert calls == [((URL,), {"application_name": "session"}), None]
