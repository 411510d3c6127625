"""A client of the control plane's HTTP API.

The CLI, the demo and the tests use it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import httpx

from keyscale.address_proof import AddressNotProvenError, Challenge, ProvenTransport
from keyscale.certificates import trusted_certificates

from .errors import (
    ControlPlaneNotProvenError,
    ControlPlaneUnreachableError,
    InvalidArgumentError,
    OperationFailedError,
    RefusedError,
    UnexpectedAnswerError,
    WaitTimeoutError,
)

if TYPE_CHECKING:
    import ssl
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from .connection import Connection

REQUEST_TIMEOUT_S = 60.0
PLAN_TIMEOUT_S = 600.0
"""For requests that may load a program."""

POLL_S = 0.2
IN_PROGRESS = "IN_PROGRESS"
COMPLETED = "COMPLETED"
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})


class ControlPlane:
    """One control plane, called over HTTP.

    A refusal raises `RefusedError` with the control plane's code and advice.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._http = httpx.Client(
            base_url=connection.url,
            headers={"Authorization": f"Bearer {connection.token}"} if connection.token else {},
            timeout=REQUEST_TIMEOUT_S,
            # A proxy for the internet must not be used for this machine.
            trust_env=urlsplit(connection.url).hostname not in LOOPBACK_HOSTS,
            verify=_trusted(connection.ca_file),
            transport=_proving(connection),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def get(self, path: str, **query: str | int | bool | list[str]) -> Any:
        """Returns the answer to a GET."""
        return self._json(self.request("GET", path, params=query))

    def get_list(self, path: str, field: str, **query: str | int | bool) -> dict[str, Any]:
        """Returns a whole list in the form of its first part.

        All parts are read, one after the other.
        """
        answer = self.get(path, **query)
        part = answer
        while part["next"] is not None:
            part = self.get(path, **query, after=part["next"])
            answer[field] += part[field]
        return {**answer, "next": None}

    def post(self, path: str, body: dict[str, Any] | None = None, **query: str | int | bool) -> Any:
        """Returns the answer to a POST of JSON."""
        return self._json(self.request("POST", path, json=body if body is not None else {}, params=query))

    def put(self, path: str, body: dict[str, Any]) -> Any:
        """Returns the answer to a PUT of JSON."""
        return self._json(self.request("PUT", path, json=body))

    def patch(self, path: str, body: dict[str, Any], *, if_match: str) -> Any:
        """Returns the answer to a PATCH of JSON for one version."""
        headers = {"If-Match": if_match}
        return self._json(self.request("PATCH", path, json=body, headers=headers, timeout=PLAN_TIMEOUT_S))

    def delete(self, path: str, **query: str | int | bool) -> Any:
        """Returns the answer to a DELETE, None if it has no body."""
        return self._json(self.request("DELETE", path, params=query))

    def upload(self, path: str, *, filename: str, content: bytes, **fields: str) -> Any:
        """Returns the answer to a multipart POST of one file."""
        files = {"file": (filename, content, "application/octet-stream")}
        return self._json(self.request("POST", path, files=files, data=fields))

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Sends a request and returns a successful answer.

        Raises:
            ControlPlaneNotProvenError: Another program answers at the address that the home directory names.
            ControlPlaneUnreachableError: Nothing answered.
            RefusedError: The control plane refused; the error carries its code.
            UnexpectedAnswerError: The server that answered is not a Keyscale control plane.
        """
        try:
            answer = self._http.request(method, path, **options)
        except AddressNotProvenError as error:
            raise ControlPlaneNotProvenError(str(error)) from error
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            raise ControlPlaneUnreachableError(
                f"no answer from the control plane at {self.connection.url}: {reason}"
            ) from error
        if answer.is_success:
            return answer
        raise self._refusal(answer)

    def _refusal(self, answer: httpx.Response) -> RefusedError | UnexpectedAnswerError:
        try:
            problem = answer.json()
        except ValueError:
            problem = None
        if isinstance(problem, dict) and "code" in problem:
            return RefusedError(problem, answer.status_code)
        return UnexpectedAnswerError(
            f"{self.connection.url} answered {answer.status_code} {answer.reason_phrase} to {answer.request.url.path}"
        )

    def _json(self, answer: httpx.Response) -> Any:
        if not answer.content:
            return None
        try:
            return answer.json()
        except ValueError as error:
            raise UnexpectedAnswerError(
                f"{self.connection.url} did not answer with JSON to {answer.request.url.path}"
            ) from error


def _proving(connection: Connection) -> httpx.BaseTransport | None:
    if connection.proof_key is None:
        return None
    challenge = Challenge(connection.url, "/proofs/home", connection.proof_key)
    return ProvenTransport(challenge, httpx.HTTPTransport(verify=_trusted(connection.ca_file), trust_env=False))


def _trusted(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return trusted_certificates(ca_file)
    except OSError as error:
        reason = error.strerror or "it holds no PEM certificate"
        raise InvalidArgumentError(f"--ca-file, KEYSCALE_CA_FILE: {ca_file} cannot be used: {reason}") from error


def job_path(job: str, *rest: str | int) -> str:
    """Returns the path of a job or of a part of it.

    The parts are quoted, so that they cannot form other paths.
    """
    return "/".join(["/v1/jobs", quote(job, safe=""), *(quote(str(part), safe="") for part in rest)])


def artifact_path(artifact_id: str) -> str:
    """Returns the path of an artifact."""
    return f"/v1/artifacts/{quote(artifact_id, safe='')}"


def token_path(token_id: str) -> str:
    """Returns the path of a token."""
    return f"/v1/tokens/{quote(token_id, safe='')}"


def wait_for(control_plane: ControlPlane, accepted: dict[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
    """Polls an accepted operation until it has ended, and returns it.

    Raises:
        OperationFailedError: The operation ended without success.
        WaitTimeoutError: The time is over; the operation continues.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        operation: dict[str, Any] = control_plane.get(f"/v1/operations/{quote(accepted['operation_id'], safe='')}")
        if operation["status"] == COMPLETED:
            return operation
        if operation["status"] != IN_PROGRESS:
            cause = operation["failure_cause"] or {}
            raise OperationFailedError(
                f"{operation['kind']} failed: {cause.get('code', '')} {cause.get('message', 'no reason was given')}"
            )
        if deadline is not None and time.monotonic() >= deadline:
            raise WaitTimeoutError(f"after {timeout_s:g} s {operation['kind']} is still {IN_PROGRESS}")
        time.sleep(POLL_S)
