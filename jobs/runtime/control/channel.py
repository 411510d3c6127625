"""The driver's connection to the control plane.

It uses HTTP, or files for a job without a control plane.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

import httpx
from pydantic import ValidationError

from keyscale.address_proof import AddressNotProvenError, ProvenTransport
from keyscale.certificates import trusted_certificates

from ...protocol.control_address import attempt_challenge, unknown_challenge
from ...protocol.messages import (
    Assignment,
    AttachRequest,
    AttachResponse,
    Call,
    CheckpointReport,
    Command,
    DiagnosticCommand,
    DiagnosticReport,
    Heartbeat,
    HeartbeatResponse,
    Message,
    StoreCredentials,
)
from ..errors import AttemptOverError, AttemptUnknownError, ControlRefusedError, ControlUnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .control_search import ControlSearch

Answer = TypeVar("Answer", bound=Message)

_TIMEOUT_SECONDS = 10.0
_KEPT_SECONDS = 20.0  # a connection without requests; a driver with nothing to report sends one every nine seconds
_CHUNK_BYTES = 1 << 20
_FILE_RETRY_MS = 50


class ControlChannel(Protocol):
    """The messages between a driver and its control plane.

    Every method raises `ControlUnreachableError` without an answer (try again), `ControlRefusedError` if the control
    plane refuses the message (a fault of the driver), and `AttemptOverError` if the control plane no longer wants this
    attempt. All messages may be sent again. Methods may be called from several threads.

    Attributes:
        can_call: Whether the control plane can call the driver; else the driver has to ask for commands.
    """

    can_call: bool

    def attach(self, request: AttachRequest) -> AttachResponse: ...

    def fetch_artifact(self, target: Path) -> None:
        """Writes the artifact's bytes, unverified, to a local file."""
        ...

    def store_credentials(self) -> StoreCredentials: ...

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatResponse: ...

    def wait_for_call(self, revision: int, seconds: float) -> bool:
        """Waits until the control plane wants a heartbeat.

        Returns False if the time is over first.
        """
        ...

    def report_checkpoint(self, report: CheckpointReport) -> None: ...

    def report_diagnostic(self, report: DiagnosticReport) -> None: ...

    def speak_as(self, job_id: str, attempt: int, token: str) -> None:
        """Sends later messages for another attempt of the job."""
        ...

    def close(self) -> None: ...


class HttpControl:
    """The control plane's `/driver/...` routes.

    A status of 5xx, 408 or 429 counts as no answer; 410 means that the attempt is over; any other 4xx is a refusal.
    Without an answer, or after an answer of a control plane that does not know the attempt, the next message goes to
    another control plane, if the search finds one. Each connection first proves that its other end knows the attempt:
    another program may listen at the address of a control plane that has ended.

    Args:
        url: The address of the control plane.
        attempt: The attempt, as `<job>:<number>`.
        token: The attempt's token.
        search: Finds another control plane.
        ca_file: PEM file with further certificate authorities to trust.
    """

    can_call = True

    def __init__(
        self, url: str, attempt: str, token: str, search: ControlSearch | None = None, ca_file: str | None = None
    ) -> None:
        self._attempt = attempt
        self._token = token
        self._search = search
        self._trusted = trusted_certificates(ca_file)
        self._lock = threading.Lock()
        self._left: list[httpx.Client] = []
        self._client = self._connect(url.rstrip("/"))

    def attach(self, request: AttachRequest) -> AttachResponse:
        return self._parsed(self._post("/driver/attach", request), AttachResponse)

    def fetch_artifact(self, target: Path) -> None:
        with self._reached() as client, client.stream("GET", "/driver/artifact") as response, target.open("wb") as file:
            self._check(client, response)
            for chunk in response.iter_bytes(_CHUNK_BYTES):
                file.write(chunk)

    def store_credentials(self) -> StoreCredentials:
        return self._parsed(self._send("GET", "/driver/store-credentials"), StoreCredentials)

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatResponse:
        response = self._parsed(self._post("/driver/heartbeat", heartbeat), HeartbeatResponse)
        if self._search is not None:
            self._search.remember(response.control_urls)
        return response

    def wait_for_call(self, revision: int, seconds: float) -> bool:
        path = f"/driver/call?revision={revision}&seconds={seconds:g}"
        answer = self._parsed(self._send("GET", path, timeout_seconds=seconds + _TIMEOUT_SECONDS), Call)
        return answer.is_called

    def report_checkpoint(self, report: CheckpointReport) -> None:
        self._post("/driver/checkpoints", report)

    def report_diagnostic(self, report: DiagnosticReport) -> None:
        self._post("/driver/diagnostics", report)

    def speak_as(self, job_id: str, attempt: int, token: str) -> None:
        with self._lock:
            self._attempt, self._token = f"{job_id}:{attempt}", token
            if self._search is not None:
                self._search.speak_as(self._attempt, token)
            self._left.append(self._client)  # closed at the end: another thread may be waiting for its answer
            self._client = self._connect(str(self._client.base_url).rstrip("/"))

    def close(self) -> None:
        for client in (*self._left, self._client):
            client.close()

    def _connect(self, url: str) -> httpx.Client:
        return httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {self._token}"},
            timeout=_TIMEOUT_SECONDS,
            transport=ProvenTransport(
                attempt_challenge(url, self._attempt, self._token),
                httpx.HTTPTransport(
                    verify=self._trusted, trust_env=False, limits=httpx.Limits(keepalive_expiry=_KEPT_SECONDS)
                ),
            ),
            trust_env=False,
        )

    def _post(self, path: str, message: Message) -> httpx.Response:
        return self._send("POST", path, message.model_dump_json())

    def _send(
        self, method: str, path: str, content: str | None = None, *, timeout_seconds: float = _TIMEOUT_SECONDS
    ) -> httpx.Response:
        headers = {"Content-Type": "application/json"}
        with self._reached() as client:
            response = client.request(method, path, content=content, headers=headers, timeout=timeout_seconds)
            self._check(client, response)
            return response

    @contextmanager
    def _reached(self) -> Iterator[httpx.Client]:
        client = self._client
        try:
            yield client
        except AddressNotProvenError as error:
            if self._is_lost(client):
                raise AttemptOverError("the control plane's database does not know this attempt") from error
            self._turn_from(client)
            if error.status == httpx.codes.UNAUTHORIZED:
                raise AttemptUnknownError(
                    f"the control plane answered {error.status}: the attempt is unknown"
                ) from error
            raise ControlUnreachableError(str(error)) from error
        except httpx.TransportError as error:
            self._turn_from(client)
            raise ControlUnreachableError(str(error)) from error

    def _check(self, client: httpx.Client, response: httpx.Response) -> None:
        status = response.status_code
        if response.is_server_error or status == httpx.codes.UNAUTHORIZED:
            self._turn_from(client)
        if status == httpx.codes.GONE:
            raise AttemptOverError("the control plane says that this attempt is over")
        if status in {httpx.codes.REQUEST_TIMEOUT, httpx.codes.TOO_MANY_REQUESTS} or response.is_server_error:
            raise ControlUnreachableError(f"the control plane answered {status}")
        if not response.is_success:
            raise ControlRefusedError(f"the control plane refused the message with status {status}")

    def _is_lost(self, client: httpx.Client) -> bool:
        """Returns whether the control plane's database has lost this attempt.

        The control plane has to prove it.
        """
        if "." not in self._token:  # an earlier version made it: a part of it cannot be told to a stranger
            return False
        url = str(client.base_url).rstrip("/")
        try:
            with httpx.HTTPTransport(verify=self._trusted, trust_env=False) as transport:
                timeout = httpx.Timeout(_TIMEOUT_SECONDS).as_dict()
                unknown_challenge(url, self._attempt, self._token).ask(transport, {"timeout": timeout})
        except (httpx.HTTPError, httpx.InvalidURL):
            return False
        return True

    def _turn_from(self, client: httpx.Client) -> None:
        """Redirects later messages to another control plane that knows the attempt."""
        if self._search is None:
            return
        with self._lock:
            if self._client is not client:
                return
            url = self._search.find(besides=str(client.base_url).rstrip("/"))
            if url is not None:
                # The old client is not closed: another thread may be waiting for its answer.
                self._client = self._connect(url)

    @staticmethod
    def _parsed(response: httpx.Response, kind: type[Answer]) -> Answer:
        try:
            return kind.model_validate_json(response.content)
        except ValidationError as error:
            raise ControlUnreachableError(f"the control plane's answer is not a {kind.__name__}") from error


class FileControl:
    """Runs a job without a control plane.

    One file holds the assignment; commands and reports are files beside it.

    The driver waits in standby until the assignment's file exists; move the file into place in one step.

    Beside the assignment `<name>.json` is the directory `<name>.control/`:
    `commands/*.json` are `Command`s, read in the order of their names, each until its result is reported;
    `heartbeat.json` is the last `Heartbeat`, `results/<command id>.json` each command's `CommandResult`, and
    `checkpoints/<checkpoint id>.json` the last `CheckpointReport` of each checkpoint. `requests/*.json` are
    `DiagnosticCommand`s, and `diagnostics/<diagnostic id>.json` each request's `DiagnosticReport`.
    """

    can_call = False

    def __init__(self, assignment_file: Path, artifact_file: Path) -> None:
        self._assignment_file = assignment_file
        self._artifact_file = artifact_file
        self._directory = assignment_file.with_suffix(".control")
        for name in ("commands", "results", "checkpoints", "requests", "diagnostics"):
            (self._directory / name).mkdir(parents=True, exist_ok=True)

    def attach(self, request: AttachRequest) -> AttachResponse:  # noqa: ARG002 - no control plane reads it
        try:
            content = self._assignment_file.read_bytes()
        except FileNotFoundError:
            return AttachResponse(decision="wait", retry_after_ms=_FILE_RETRY_MS)
        return AttachResponse(decision="run", assignment=Assignment.model_validate_json(content))

    def fetch_artifact(self, target: Path) -> None:
        target.write_bytes(self._artifact_file.read_bytes())

    def store_credentials(self) -> StoreCredentials:
        raise ControlRefusedError("without a control plane only the environment's credentials exist")

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatResponse:
        for result in heartbeat.results:
            self._replace(self._directory / "results" / f"{result.command_id}.json", result)
        self._replace(self._directory / "heartbeat.json", heartbeat)
        commands = (
            Command.model_validate_json(path.read_bytes())
            for path in sorted((self._directory / "commands").glob("*.json"))
        )
        answered = {path.stem for path in (self._directory / "results").glob("*.json")}
        requests = (
            DiagnosticCommand.model_validate_json(path.read_bytes())
            for path in sorted((self._directory / "requests").glob("*.json"))
        )
        reported = {path.stem for path in (self._directory / "diagnostics").glob("*.json")}
        return HeartbeatResponse(
            commands=[command for command in commands if command.id not in answered],
            diagnostics=[request for request in requests if request.id not in reported],
        )

    def wait_for_call(self, revision: int, seconds: float) -> bool:  # noqa: ARG002 - a file cannot call
        raise ControlRefusedError("without a control plane the driver has to look for commands")

    def report_checkpoint(self, report: CheckpointReport) -> None:
        self._replace(self._directory / "checkpoints" / f"{report.checkpoint_id}.json", report)

    def report_diagnostic(self, report: DiagnosticReport) -> None:
        self._replace(self._directory / "diagnostics" / f"{report.diagnostic_id}.json", report)

    def speak_as(self, job_id: str, attempt: int, token: str) -> None:
        """Keeps the files, which all attempts share."""

    def close(self) -> None:
        """Does nothing: a file has no connection."""

    @staticmethod
    def _replace(path: Path, message: Message) -> None:
        temporary = path.with_suffix(".writing")
        temporary.write_text(message.model_dump_json(), encoding="utf-8")
        os.replace(temporary, path)  # noqa: PTH105 - atomic, as its name says to readers
