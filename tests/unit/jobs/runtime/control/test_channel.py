from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from keyscale.jobs.protocol.messages import (
    Assignment,
    AttachRequest,
    CheckpointReport,
    CheckpointStatus,
    Command,
    CommandKind,
    CommandResult,
    DriverState,
    Heartbeat,
)
from keyscale.jobs.runtime.control.channel import FileControl, HttpControl
from keyscale.jobs.runtime.errors import AttemptOverError, ControlRefusedError, ControlUnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keyscale.jobs.runtime.control.control_search import ControlSearch

BEAT = Heartbeat(state=DriverState.RUNNING)


class ControlServer:
    """An HTTP server that answers every request with one chosen status and body, and keeps the requests."""

    def __init__(self) -> None:
        self.status, self.body = 200, b"{}"
        self.requests: list[tuple[str, str, str | None, bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                content = self.rfile.read(length)
                outer.requests.append((self.command, self.path, self.headers.get("Authorization"), content))
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(outer.body)))
                self.end_headers()
                self.wfile.write(outer.body)

            do_POST = do_GET  # noqa: N815 - the name that http.server calls

            def log_message(self, *_: object) -> None:
                """Tests need no access log."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def server() -> Iterator[ControlServer]:
    server = ControlServer()
    yield server
    server.close()


@pytest.fixture
def control(server: ControlServer) -> Iterator[HttpControl]:
    control = HttpControl(server.url, "secret")
    yield control
    control.close()


def test_a_heartbeat_carries_the_token_and_brings_commands(server: ControlServer, control: HttpControl) -> None:
    server.body = b'{"commands": [{"id": "c1", "kind": "SAVEPOINT", "savepoint_id": "s", "new_field": 1}]}'
    assert control.heartbeat(BEAT).commands == [Command(id="c1", kind=CommandKind.SAVEPOINT, savepoint_id="s")]
    method, path, authorization, content = server.requests[0]
    assert (method, path, authorization) == ("POST", "/driver/heartbeat", "Bearer secret")
    assert Heartbeat.model_validate_json(content) == BEAT


def test_attaching_and_reporting_use_their_routes(server: ControlServer, control: HttpControl) -> None:
    server.body = b'{"decision": "wait"}'
    assert control.attach(AttachRequest(pid=1, host="h")).decision == "wait"
    server.status, server.body = 204, b""
    control.report_checkpoint(
        CheckpointReport(checkpoint_id=1, status=CheckpointStatus.IN_PROGRESS, trigger_timestamp=0)
    )
    assert [request[1] for request in server.requests] == ["/driver/attach", "/driver/checkpoints"]


def test_the_artifact_arrives_unchanged(server: ControlServer, control: HttpControl, tmp_path: Path) -> None:
    server.body = bytes(range(256)) * 9000
    control.fetch_artifact(tmp_path / "artifact")
    assert (tmp_path / "artifact").read_bytes() == server.body


@pytest.mark.parametrize("answers", [True, False])
def test_an_artifact_that_one_control_plane_does_not_send_is_fetched_from_another_one(
    server: ControlServer, tmp_path: Path, answers: bool
) -> None:
    with socket.socket() as bound:  # bound, but nothing listens
        bound.bind(("127.0.0.1", 0))
        other = ControlServer()
        other.status = 503  # as of one that is cut off from the database
        search = SimpleNamespace(find=lambda besides: server.url)  # noqa: ARG005 - the name by which it is called
        url = other.url if answers else f"http://127.0.0.1:{bound.getsockname()[1]}"
        control = HttpControl(url, "secret", cast("ControlSearch", search))
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
    server: ControlServer, control: HttpControl, status: int, error: type[Exception]
) -> None:
    server.status = status
    with pytest.raises(error):
        control.heartbeat(BEAT)


def test_an_answer_that_is_not_a_message_counts_as_no_answer(server: ControlServer, control: HttpControl) -> None:
    server.body = b"<html>a proxy</html>"
    with pytest.raises(ControlUnreachableError):
        control.heartbeat(BEAT)


def test_an_address_without_a_server_is_unreachable() -> None:
    with socket.socket() as bound:  # bound, but nothing listens
        bound.bind(("127.0.0.1", 0))
        control = HttpControl(f"http://127.0.0.1:{bound.getsockname()[1]}", "secret")
        with pytest.raises(ControlUnreachableError):
            control.heartbeat(BEAT)
        control.close()


def test_files_can_replace_a_control_plane(tmp_path: Path) -> None:
    assignment = Assignment(
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
