from __future__ import annotations

import contextlib
import json
import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.api.access.tokens import token_sha256
from keyscale.jobs.protocol.messages import (
    AttachRequest,
    Call,
    CheckpointReport,
    Command,
    CommandResult,
    DiagnosticCommand,
    DiagnosticReport,
    Heartbeat,
    HeartbeatResponse,
)
from keyscale.jobs.runtime.control.channel import FileControl, HttpControl
from keyscale.jobs.runtime.errors import (
    AttemptOverError,
    AttemptUnknownError,
    ControlError,
    ControlRefusedError,
    ControlUnreachableError,
)
from keyscale.vocabulary import CheckpointStatus, CommandKind, DiagnosticKind, DriverState
from tests.support.drivers.assignments import assignment as new_assignment
from tests.support.servers.stand_in_server import StandInServer, stand_in_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keyscale.jobs.runtime.control.control_search import ControlSearch

BEAT = Heartbeat(state=DriverState.RUNNING)


ATTEMPT, TOKEN = "job:1", "salt.secret"
KEY = token_sha256(TOKEN)


def reports(server: StandInServer) -> list[tuple[str, str, str | None, bytes]]:
    """The requests besides the proof of the connection."""
    assert server.requests[0][:3] == ("GET", "/driver/proof", None)
    return server.requests[1:]


@pytest.fixture
def server() -> Iterator[StandInServer]:
    with stand_in_server(KEY) as server:
        yield server


@pytest.fixture
def control(server: StandInServer) -> Iterator[HttpControl]:
    control = HttpControl(server.url, ATTEMPT, TOKEN)
    yield control
    control.close()


def test_a_heartbeat_carries_the_token_and_brings_commands(server: StandInServer, control: HttpControl) -> None:
    server.body = b'{"commands": [{"id": "c1", "kind": "SAVEPOINT", "savepoint_id": "s", "new_field": 1}]}'
    assert control.heartbeat(BEAT).commands == [Command(id="c1", kind=CommandKind.SAVEPOINT, savepoint_id="s")]
    method, path, authorization, content = reports(server)[0]
    assert (method, path, authorization) == ("POST", "/driver/heartbeat", "Bearer salt.secret")
    assert Heartbeat.model_validate_json(content) == BEAT


def test_attaching_and_reporting_use_their_routes(server: StandInServer, control: HttpControl) -> None:
    server.body = b'{"decision": "wait"}'
    assert control.attach(AttachRequest(pid=1, host="h")).decision == "wait"
    server.status, server.body = 204, b""
    control.report_checkpoint(
        CheckpointReport(checkpoint_id=1, status=CheckpointStatus.IN_PROGRESS, trigger_timestamp=0)
    )
    assert [request[1] for request in reports(server)] == ["/driver/attach", "/driver/checkpoints"]


def test_granted_credentials_are_asked_for_by_the_attempt(server: StandInServer, control: HttpControl) -> None:
    keys = {"access_key_id": "id", "secret_access_key": "secret", "session_token": "token", "expires_at_ms": 9}
    server.body = json.dumps(keys).encode()
    assert control.store_credentials().model_dump() == keys
    assert reports(server) == [("GET", "/driver/store-credentials", "Bearer salt.secret", b"")]


def test_a_wait_for_a_call_uses_its_route(server: StandInServer, control: HttpControl) -> None:
    for is_called in (True, False):
        server.body = b'{"is_called": %s}' % str(is_called).lower().encode()
        assert control.wait_for_call(3, 30.0) is is_called
    assert [request[:2] for request in reports(server)] == [("GET", "/driver/call")] * 2


def test_the_artifact_arrives_unchanged(server: StandInServer, control: HttpControl, tmp_path: Path) -> None:
    server.body = bytes(range(256)) * 9000
    control.fetch_artifact(tmp_path / "artifact")
    assert (tmp_path / "artifact").read_bytes() == server.body


@pytest.mark.parametrize("answers", [True, False])
def test_an_artifact_that_one_control_plane_does_not_send_is_fetched_from_another_one(
    server: StandInServer, tmp_path: Path, answers: bool
) -> None:
    with socket.socket() as bound:  # bound, but nothing listens
        bound.bind(("127.0.0.1", 0))
        other = StandInServer(KEY)
        other.status = 503  # as of one that is cut off from the database
        search = SimpleNamespace(find=lambda besides: server.url)  # noqa: ARG005 - the name by which it is called
        url = other.url if answers else f"http://127.0.0.1:{bound.getsockname()[1]}"
        control = HttpControl(url, ATTEMPT, TOKEN, cast("ControlSearch", search))
        try:
            with pytest.raises(ControlUnreachableError):
                control.fetch_artifact(tmp_path / "artifact")
            server.body = b"pass"
            control.fetch_artifact(tmp_path / "artifact")
        finally:
            control.close()
            other.close()
    assert (tmp_path / "artifact").read_bytes() == b"pass"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (500, ControlUnreachableError),
        (503, ControlUnreachableError),
        (429, ControlUnreachableError),
        (401, ControlRefusedError),
        (422, ControlRefusedError),
        (410, AttemptOverError),
    ],
)
def test_a_status_becomes_the_error_that_says_what_to_do(
    server: StandInServer, control: HttpControl, status: int, error: type[Exception]
) -> None:
    server.status = status
    with pytest.raises(error):
        control.heartbeat(BEAT)


def test_a_program_that_does_not_know_the_attempt_gets_no_token() -> None:
    with stand_in_server("another-key") as stranger:
        control = HttpControl(stranger.url, ATTEMPT, TOKEN)
        for _ in range(2):
            with pytest.raises(ControlUnreachableError, match="has not proved"):
                control.heartbeat(BEAT)
        control.close()
    assert (set(stranger.asked), stranger.credentials) == ({"/driver/proof", "/driver/unknown"}, set())


def test_a_control_plane_that_does_not_know_the_attempt_refuses_the_driver() -> None:
    with stand_in_server() as server:
        server.proof_status = 401
        control = HttpControl(server.url, ATTEMPT, TOKEN)
        with pytest.raises(AttemptUnknownError):
            control.heartbeat(BEAT)
        control.close()


def test_an_answer_that_is_not_a_message_counts_as_no_answer(server: StandInServer, control: HttpControl) -> None:
    server.body = b"<html>a proxy</html>"
    with pytest.raises(ControlUnreachableError):
        control.heartbeat(BEAT)


def test_an_address_without_a_server_is_unreachable() -> None:
    with socket.socket() as bound:  # bound, but nothing listens
        bound.bind(("127.0.0.1", 0))
        control = HttpControl(f"http://127.0.0.1:{bound.getsockname()[1]}", ATTEMPT, TOKEN)
        with pytest.raises(ControlUnreachableError):
            control.heartbeat(BEAT)
        control.close()


def test_files_can_replace_a_control_plane(tmp_path: Path) -> None:
    assignment = new_assignment(
        job_id="j",
        job_name="n",
        attempt=1,
        parallelism=1,
        max_parallelism=2,
        artifact_filename="a.py",
        artifact_sha256="0",
        store_url="file:///tmp/x",
    )
    (tmp_path / "job.json").write_text(assignment.model_dump_json())
    (tmp_path / "a.py").write_text("pass")
    control = FileControl(tmp_path / "job.json", tmp_path / "a.py")
    assert control.attach(AttachRequest(pid=1, host="h")).assignment == assignment
    control.fetch_artifact(tmp_path / "copy.py")
    assert (tmp_path / "copy.py").read_text() == "pass"

    command = Command(id="c1", kind=CommandKind.CHECKPOINT)
    (tmp_path / "job.control" / "commands" / "c1.json").write_text(command.model_dump_json())
    assert control.heartbeat(BEAT).commands == [command]
    result = CommandResult(command_id="c1", status="COMPLETED")
    assert control.heartbeat(BEAT.model_copy(update={"results": [result]})).commands == []
    written = (tmp_path / "job.control" / "results" / "c1.json").read_bytes()
    assert CommandResult.model_validate_json(written) == result

    look = DiagnosticCommand(id="d1", kind=DiagnosticKind.THREAD_DUMP)
    (tmp_path / "job.control" / "requests" / "d1.json").write_text(look.model_dump_json())
    assert control.heartbeat(BEAT).diagnostics == [look]
    control.report_diagnostic(DiagnosticReport(diagnostic_id="d1"))
    assert control.heartbeat(BEAT).diagnostics == []


@pytest.mark.parametrize("key", [KEY, None])
def test_a_database_that_has_lost_the_attempt_ends_its_driver_once_that_is_proven(
    server: StandInServer, control: HttpControl, key: str | None
) -> None:
    server.key, server.lost_key, server.proof_status = None, key, 401
    with pytest.raises(ControlRefusedError if key is None else AttemptOverError):
        control.heartbeat(BEAT)
    assert {(path, credential) for _, path, credential, _ in server.requests} == {
        ("/driver/proof", None),
        ("/driver/unknown", None),
    }


@pytest.mark.parametrize("wrong", ["another key", "another address"])
def test_a_loss_that_is_not_proven_ends_no_driver(server: StandInServer, control: HttpControl, wrong: str) -> None:
    server.key, server.lost_key = None, token_sha256("of another attempt") if wrong == "another key" else KEY
    server.proves_as = "http://elsewhere:1" if wrong == "another address" else ""
    with pytest.raises(ControlUnreachableError):
        control.heartbeat(BEAT)


def test_a_control_plane_that_knows_the_attempt_is_not_asked_whether_it_has_lost_it(
    server: StandInServer, control: HttpControl
) -> None:
    server.lost_key = KEY
    control.heartbeat(BEAT)
    assert "/driver/unknown" not in [path for _, path, *_ in server.requests]


def test_no_part_of_a_token_without_a_salt_is_told_to_a_program_that_has_proved_nothing() -> None:
    with stand_in_server("another-key") as stranger:
        control = HttpControl(stranger.url, ATTEMPT, "of-an-earlier-version")
        with pytest.raises(ControlUnreachableError):
            control.heartbeat(BEAT)
        control.close()
    assert set(stranger.asked) == {"/driver/proof"}


def test_later_messages_carry_the_token_of_the_next_attempt(server: StandInServer, control: HttpControl) -> None:
    control.heartbeat(BEAT)
    server.key = token_sha256("salt.next")
    control.speak_as("job", 2, "salt.next")
    control.heartbeat(BEAT)
    beats = [request for request in server.requests if request[1] == "/driver/heartbeat"]
    assert [authorization for _, _, authorization, _ in beats] == ["Bearer salt.secret", "Bearer salt.next"]
    proofs = [path for _, path, _, _ in server.requests if path.startswith("/driver/proof")]
    assert len(proofs) == 2, "the control plane proves that it knows the next attempt, too"


def test_another_control_plane_is_looked_for_in_the_name_of_the_next_attempt() -> None:
    spoken: list[Any] = []
    search: Any = SimpleNamespace(speak_as=lambda *attempt: spoken.append(attempt))
    control = HttpControl("http://127.0.0.1:9", ATTEMPT, TOKEN, search)
    control.speak_as("job", 2, "salt.next")
    control.close()
    assert spoken == [("job:2", "salt.next")]


def test_a_driver_without_a_control_plane_waits_for_its_file_and_tells_its_checkpoints_in_files(tmp_path: Path) -> None:
    control = FileControl(tmp_path / "job.json", tmp_path / "a.py")
    waits = control.attach(AttachRequest(pid=1, host="h"))
    assert (waits.decision, waits.assignment, waits.retry_after_ms) == ("wait", None, 50)
    for refused in (control.store_credentials, lambda: control.wait_for_call(1, 0.0)):
        with pytest.raises(ControlRefusedError, match="without a control plane"):
            refused()
    folder = tmp_path / "job.control" / "checkpoints"
    first, second, later = (
        CheckpointReport(
            checkpoint_id=number, status=status, trigger_timestamp=number, end_to_end_duration=0, is_savepoint=False
        )
        for number, status in (
            (1, CheckpointStatus.IN_PROGRESS),
            (1, CheckpointStatus.COMPLETED),
            (2, CheckpointStatus.IN_PROGRESS),
        )
    )
    for report in (first, second, later):
        control.report_checkpoint(report)
    found = {path.name: CheckpointReport.model_validate_json(path.read_bytes()) for path in folder.iterdir()}
    assert found == {"1.json": second, "2.json": later}


def test_a_report_of_a_diagnostic_is_sent_to_its_own_place(server: StandInServer, control: HttpControl) -> None:
    report = DiagnosticReport(diagnostic_id="d1")
    control.report_diagnostic(report)
    [(method, path, credential, content)] = reports(server)
    assert (method, path, credential) == ("POST", "/driver/diagnostics", f"Bearer {TOKEN}")
    assert DiagnosticReport.model_validate_json(content) == report


@pytest.mark.parametrize(
    ("status", "turns"),
    [(200, False), (401, True), (500, True), *((each, False) for each in (403, 408, 410, 422, 429))],
)
def test_a_driver_turns_from_a_control_plane_that_fails_or_does_not_know_it(
    server: StandInServer, status: int, turns: bool
) -> None:
    asked: list[str] = []
    search = SimpleNamespace(find=lambda *, besides: asked.append(besides), remember=lambda _: None)
    control = HttpControl(f"{server.url}/", ATTEMPT, TOKEN, cast("Any", search))
    server.status, server.body = status, HeartbeatResponse().model_dump_json().encode()
    with contextlib.nullcontext() if status == 200 else pytest.raises(ControlError):
        control.heartbeat(BEAT)
    control.close()
    assert asked == ([server.url] if turns else [])


def test_a_message_waits_ten_seconds_for_its_answer_and_a_wait_for_a_call_so_much_longer(
    server: StandInServer, control: HttpControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    request = control._client.request

    def timed(*given: Any, timeout: float, **named: Any) -> Any:
        waits.append(timeout)
        return request(*given, timeout=timeout, **named)

    monkeypatch.setattr(control._client, "request", timed)
    server.body = Call(is_called=True).model_dump_json().encode()
    assert control.wait_for_call(3, 30.0)
    server.body = HeartbeatResponse().model_dump_json().encode()
    control.heartbeat(BEAT)
    assert waits == [40.0, 10.0]
