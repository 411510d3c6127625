"""The tokens of sinks are kept in the log: those of earlier versions are read, and newer ones count dead letters."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from keyscale import DeadLetterSink, FileSink, KafkaSink, PostgresSink
from tests.support.repository import GOLDEN

TOKENS = json.loads((GOLDEN / "sink-tokens-v1.json").read_text())
"""Of a version that did not keep the number of dead letters."""
SINKS = {"kafka": KafkaSink("localhost:1", "topic", staging="staging"), "postgres": PostgresSink("", "table")}


@pytest.mark.parametrize("name", SINKS)
def test_a_token_of_an_earlier_version_is_read_and_counts_no_dead_letters(name: str) -> None:
    sink = SINKS[name]
    assert isinstance(sink, DeadLetterSink)
    assert sink.dead_letters_of(TOKENS[name]) == 0
    assert sink.dead_letters_of(json.dumps({**json.loads(TOKENS[name]), "dead_letter_rows": 7})) == 7


@pytest.mark.parametrize("token", [TOKENS["kafka"], ""], ids=["of Kafka", "of a function"])
def test_a_batch_that_another_kind_of_sink_has_staged_under_the_uid_is_left_out(
    token: str, caplog: pytest.LogCaptureFixture
) -> None:
    SINKS["postgres"].publish(token)
    assert "a sink of another kind has staged it" in caplog.text


class Letters:
    """A sink for dead letters that keeps the tokens which it publishes."""

    def __init__(self) -> None:
        self.published: list[str] = []

    def publish(self, token: str) -> None:
        self.published.append(token)


def test_dead_letters_are_published_with_a_batch_that_another_driver_has_staged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PostgresSink, "_publish_staged", lambda *_: None)  # needs a database
    letters = Letters()
    PostgresSink("", "table", dead_letters=cast("Any", letters)).publish(TOKENS["postgres"])
    assert letters.published == ["letters-3"]


def test_a_sink_of_files_refuses_nothing() -> None:
    assert not isinstance(FileSink("out"), DeadLetterSink)
