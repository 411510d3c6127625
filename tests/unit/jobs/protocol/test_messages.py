"""Messages between drivers and control planes of different versions; none shows a secret in a log."""

from __future__ import annotations

from typing import Any

import pytest

from keyscale.jobs.protocol.messages import (
    AttachRequest,
    AttachResponse,
    CheckpointReport,
    Command,
    DiagnosticReport,
    Heartbeat,
    HeartbeatResponse,
    Message,
    ReservedAttempt,
    StoreCredentials,
)
from keyscale.vocabulary import CheckpointStatus, CommandKind, DriverState
from tests.support.drivers.assignments import assignment

GIVEN = assignment(job_id="j", job_name="j", attempt=1, artifact_filename="a.py", artifact_sha256="0", store_url="f")
RESERVED = ReservedAttempt(token="sesame", assignment=GIVEN)  # noqa: S106


@pytest.mark.parametrize(
    "message",
    [
        RESERVED,
        Command(id="c", kind=CommandKind.RESCALE, next_attempt=RESERVED, return_attempt=RESERVED),
        HeartbeatResponse(commands=[Command(id="c", kind=CommandKind.RESCALE, next_attempt=RESERVED)]),
        StoreCredentials(access_key_id="id", secret_access_key="sesame", session_token="sesame", expires_at_ms=1),  # noqa: S106
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_shows_no_secret_in_a_log_and_carries_it_all_the_same(message: Message) -> None:
    assert "sesame" not in f"{message!r} {message}"
    assert "sesame" in message.model_dump_json()
    assert type(message).model_validate_json(message.model_dump_json()) == message


@pytest.mark.parametrize(
    "message",
    [
        AttachRequest(pid=1, host="h"),
        AttachResponse(decision="run", assignment=GIVEN),
        CheckpointReport(checkpoint_id=1, status=CheckpointStatus.COMPLETED, trigger_timestamp=1),
        DiagnosticReport(diagnostic_id="d"),
        Heartbeat(state=DriverState.RUNNING),
        HeartbeatResponse(),
        GIVEN,
    ],
    ids=lambda message: type(message).__name__,
)
def test_an_older_peer_sends_fewer_fields_and_a_newer_one_more(message: Message) -> None:
    fields = type(message).model_fields
    usual = {name: field.get_default(call_default_factory=True) for name, field in fields.items()}
    sent = message.model_dump(mode="json").items()
    short = {name: value for name, value in sent if name not in fields or getattr(message, name) != usual[name]}
    assert (
        {name for name, field in fields.items() if field.is_required()} <= short.keys() < fields.keys() | {*dict(sent)}
    )
    newer: dict[str, Any] = {**short, "of_a_newer_version": {"a": 1}}
    assert type(message).model_validate(newer) == message
