"""`logs --follow` prints each byte of one attempt's log once, and says what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.api.cli import jobs
from keyscale.api.cli.jobs import follow_log

if TYPE_CHECKING:
    from keyscale.client.keyscale import Keyscale

LOGS = {1: "first\nsecond\nthird\n", 2: "another driver's log\n"}


class Logs:
    """A control plane with a log of each attempt, of which a reader without an attempt gets the newest."""

    def __init__(self) -> None:
        self.newest = 1
        self.queries: list[dict[str, Any]] = []
        self.begins_at = 0

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        assert path == "/v1/jobs/visits/logs"
        self.queries.append(query)
        if len(self.queries) > 4:
            raise KeyboardInterrupt
        attempt = query.get("attempt", self.newest)
        offset = max(query.get("offset", 0), self.begins_at)
        text = LOGS[attempt][offset : offset + 6]
        return {"attempt": attempt, "text": text, "offset": offset, "next_offset": offset + len(text)}


def follow(logs: Logs, monkeypatch: pytest.MonkeyPatch, **query: Any) -> None:
    monkeypatch.setattr(jobs, "FOLLOW_S", 0)
    with pytest.raises(KeyboardInterrupt):
        follow_log(cast("Keyscale", logs), "visits", 100, query)


def test_a_followed_log_stays_that_of_its_attempt_when_another_one_takes_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = Logs()
    found = logs.get

    def get(path: str, **query: Any) -> dict[str, Any]:
        answer = found(path, **query)
        logs.newest = 2
        return answer

    monkeypatch.setattr(logs, "get", get)
    follow(logs, monkeypatch)
    assert capsys.readouterr().out == LOGS[1]
    assert [query.get("attempt") for query in logs.queries] == [None, 1, 1, 1, 1]
    assert [query.get("offset") for query in logs.queries] == [None, 6, 12, 18, 19]


def test_an_attempt_that_is_asked_for_is_followed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    follow(Logs(), monkeypatch, attempt=2)
    assert capsys.readouterr().out == LOGS[2]


def test_output_that_newer_output_has_replaced_is_reported_as_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = Logs()
    found = logs.get

    def get(path: str, **query: Any) -> dict[str, Any]:
        logs.begins_at = 13 if logs.queries else 0
        return found(path, **query)

    monkeypatch.setattr(logs, "get", get)
    follow(logs, monkeypatch)
    shown = capsys.readouterr()
    assert shown.out == "first\nthird\n"
    assert "(7 B are missing here" in shown.err
