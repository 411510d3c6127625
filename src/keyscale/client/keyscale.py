"""The client of a control plane, for threads and for event loops."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from .call import PLAN_TIMEOUT_S, Call, Steps
from .connection import default_home, find_connection
from .method import Method, Noun, S
from .nouns.artifact_calls import Artifacts
from .nouns.checkpoint_calls import Checkpoints
from .nouns.control_plane_calls import ControlPlane
from .nouns.diagnostic_calls import Diagnostics
from .nouns.event_calls import Events
from .nouns.job_calls import Jobs
from .nouns.log_calls import Logs
from .nouns.operation_calls import Operations
from .nouns.revision_calls import Revisions
from .nouns.savepoint_calls import Savepoints
from .nouns.secret_calls import Secrets
from .nouns.setting_calls import Settings
from .nouns.state_calls import States
from .nouns.subscription_calls import Subscriptions
from .nouns.token_calls import Tokens
from .sender import AsyncSender, Sender

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    import httpx

    from .connection import Connection


NOUNS = (
    Artifacts,
    Checkpoints,
    States,
    ControlPlane,
    Diagnostics,
    Events,
    Jobs,
    Logs,
    Operations,
    Revisions,
    Savepoints,
    Secrets,
    Settings,
    Subscriptions,
    Tokens,
)


class _Nouns(Noun[S]):
    """The nouns of the API, and requests by path.

    Requests by path answer with plain JSON.
    """

    def __init__(self, sender: S) -> None:
        self.sender: S = sender
        self.artifacts: Artifacts[S] = Artifacts(sender)
        self.checkpoints: Checkpoints[S] = Checkpoints(sender)
        self.states: States[S] = States(sender)
        self.control_plane: ControlPlane[S] = ControlPlane(sender)
        self.diagnostics: Diagnostics[S] = Diagnostics(sender)
        self.events: Events[S] = Events(sender)
        self.jobs: Jobs[S] = Jobs(sender)
        self.logs: Logs[S] = Logs(sender)
        self.operations: Operations[S] = Operations(sender)
        self.revisions: Revisions[S] = Revisions(sender)
        self.savepoints: Savepoints[S] = Savepoints(sender)
        self.secrets: Secrets[S] = Secrets(sender)
        self.settings: Settings[S] = Settings(sender)
        self.subscriptions: Subscriptions[S] = Subscriptions(sender)
        self.tokens: Tokens[S] = Tokens(sender)

    @property
    def connection(self) -> Connection:
        """The control plane's address and token."""
        return self.sender.connection

    @Method
    def get(self, /, path: str, **query: Any) -> Call[Any]:
        """Returns the answer to a GET."""
        return Call("GET", path, object, query=query)

    @Method
    def get_list(self, /, path: str, field: str, **query: Any) -> Steps[Any]:
        """Returns a whole list in the form of its first part."""
        answer = yield Call("GET", path, object, query=query)
        after = answer["next"]
        while after is not None:
            part = yield Call("GET", path, object, query={**query, "after": after})
            answer[field] += part[field]
            after = part["next"]
        return {**answer, "next": None}

    @Method
    def post(self, /, path: str, body: Mapping[str, Any] | None = None, **query: Any) -> Call[Any]:
        """Returns the answer to a POST of JSON."""
        return Call("POST", path, object, query=query, body=body or {}, timeout_s=PLAN_TIMEOUT_S)

    @Method
    def put(self, /, path: str, body: Mapping[str, Any]) -> Call[Any]:
        """Returns the answer to a PUT of JSON."""
        return Call("PUT", path, object, body=body, is_repeatable=True)

    @Method
    def patch(self, /, path: str, body: Mapping[str, Any], *, if_match: str) -> Call[Any]:
        """Returns the answer to a PATCH of JSON for one version."""
        return Call("PATCH", path, object, body=body, if_match=if_match, timeout_s=PLAN_TIMEOUT_S)

    @Method
    def delete(self, /, path: str, **query: Any) -> Call[Any]:
        """Returns the answer to a DELETE, None if it has no body."""
        return Call("DELETE", path, object, query=query, timeout_s=PLAN_TIMEOUT_S)

    @Method
    def request(
        self,
        /,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = PLAN_TIMEOUT_S,
        **query: Any,
    ) -> Call[Any]:
        """Returns the answer to a request of any method."""
        return Call(method, path, object, query=query, body=body, timeout_s=timeout_s)

    @Method
    def upload(self, /, path: str, *, filename: str, content: bytes, **fields: str) -> Call[Any]:
        """Returns the answer to a multipart POST of one file."""
        return Call("POST", path, object, form=fields, file=(filename, content), is_repeatable=True)


class Keyscale(_Nouns[Sender]):
    """A client of a control plane.

    Args:
        url: The address. Default: KEYSCALE_URL, else the control plane that was started on the home directory.
        token: The token. Default: KEYSCALE_TOKEN, else the admin token of the home directory.
        ca_file: PEM file with further certificate authorities. Default: KEYSCALE_CA_FILE.
        home: The home directory of a control plane on this machine. Default: KEYSCALE_HOME, else .keyscale.
        connection: The address and token, in place of the arguments before.
        transport: Sends the requests instead of the network, for tests.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        ca_file: str | Path | None = None,
        home: str | Path | None = None,
        connection: Connection | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(Sender(connection or _connection(url, token, ca_file, home), transport))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self.sender.close()


class AsyncKeyscale(_Nouns[AsyncSender]):
    """A client of a control plane for an event loop.

    Its arguments and methods are those of `Keyscale`; its methods are awaited, and its lists iterated by `async for`.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        ca_file: str | Path | None = None,
        home: str | Path | None = None,
        connection: Connection | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(AsyncSender(connection or _connection(url, token, ca_file, home), transport))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self.sender.close()


def _connection(url: str | None, token: str | None, ca_file: str | Path | None, home: str | Path | None) -> Connection:
    """Finds the control plane to talk to, as the command line does."""
    authorities = ca_file or os.environ.get("KEYSCALE_CA_FILE")
    return find_connection(
        url or os.environ.get("KEYSCALE_URL"),
        token or os.environ.get("KEYSCALE_TOKEN"),
        default_home() if home is None else Path(home).expanduser().absolute(),
        Path(authorities) if authorities else None,
    )
