"""The control plane's HTTP API, as the CLI, the demo and the tests call it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx

from api.cli.problems import ControlPlaneUnreachableError, RefusedError, UnexpectedAnswerError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from api.cli.connection import Connection

REQUEST_TIMEOUT_S = 60.0
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})


class ControlPlane:
    """One control plane, seen over HTTP. Refusals raise `RefusedError`, with the control plane's code and advice."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._http = httpx.Client(
            base_url=connection.url,
            headers={"Authorization": f"Bearer {connection.token}"} if connection.token else {},
            timeout=REQUEST_TIMEOUT_S,
            # A proxy meant for the internet must not stand between a user and this machine.
            trust_env=urlsplit(connection.url).hostname not in LOOPBACK_HOSTS,
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

    def get(self, path: str, **query: str | int | bool) -> Any:
        """Returns the answer to a GET."""
        return self._json(self.request("GET", path, params=query))

    def post(self, path: str, body: dict[str, Any] | None = None, **query: str | int | bool) -> Any:
        """Returns the answer to a POST of JSON."""
        return self._json(self.request("POST", path, json=body if body is not None else {}, params=query))

    def delete(self, path: str, **query: str | int | bool) -> Any:
        """Returns the answer to a DELETE, None where it has no body."""
        return self._json(self.request("DELETE", path, params=query))

    def upload(self, path: str, *, filename: str, content: bytes, **fields: str) -> Any:
        """Returns the answer to a multipart POST of one file."""
        files = {"file": (filename, content, "application/octet-stream")}
        return self._json(self.request("POST", path, files=files, data=fields))

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Sends a request and returns a successful answer.

        Raises:
            ControlPlaneUnreachableError: Nothing answered.
            RefusedError: The control plane refused, with its own code.
            UnexpectedAnswerError: What answered is no Keyscale control plane.
        """
        try:
            answer = self._http.request(method, path, **options)
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            message = f"no answer from the control plane at {self.connection.url}: {reason}"
            raise ControlPlaneUnreachableError(message) from error
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
        message = (
            f"{self.connection.url} answered {answer.status_code} {answer.reason_phrase} to {answer.request.url.path}"
        )
        return UnexpectedAnswerError(message)

    def _json(self, answer: httpx.Response) -> Any:
        if not answer.content:
            return None
        try:
            return answer.json()
        except ValueError as error:
            message = f"{self.connection.url} did not answer with JSON to {answer.request.url.path}"
            raise UnexpectedAnswerError(message) from error
