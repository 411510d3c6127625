"""Routes that know who sends a request before they read a large body, and answer in one thread."""

from __future__ import annotations

import gzip
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, iscoroutinefunction, signature
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.params import Depends as Dependency
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from ..access.in_flight import InFlight


COMPRESSED_BYTES_MIN = 16 << 10


@dataclass(frozen=True, slots=True)
class _Later:
    """A dependency that leaves the check of a request to the thread of the endpoint."""

    guard: Callable[..., Any]

    async def __call__(self, request: Request) -> Request:
        return request


class GuardedRoute(APIRoute):
    """Runs the guards, dependencies that need the request alone such as the check of its token, before a large body.

    FastAPI reads the body first, so that anybody could make the control plane store hundreds of megabytes.

    It would also run the guard, the endpoint and the check of the answer in a thread each, one after the other. To hand
    a request to a thread and back costs about as much as to read a job, so here one thread does all three.

    Attributes:
        unguarded_bytes_max: A body up to this size is read at once: to look its sender up twice would cost more.
    """

    unguarded_bytes_max: ClassVar[int] = 64 << 10

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint if iscoroutinefunction(endpoint) else self._in_one_thread(endpoint), **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        guards = [
            call.guard if isinstance(call, _Later) else call
            for dependency in self.dependant.dependencies
            if (call := dependency.call) is not None
            and dependency.request_param_name == "request"
            and not iscoroutinefunction(call)  # it checks nothing
        ]

        async def guarded(request: Request) -> Response:
            if _announced_bytes(request) > self.unguarded_bytes_max:
                for guard in guards:
                    await run_in_threadpool(guard, request=request)
            with self.slot(request):
                try:
                    return await handle(request)
                except RequestValidationError:
                    for guard in guards:  # only who may send a request is told what is wrong with it
                        await run_in_threadpool(guard, request=request)
                    raise

        return guarded

    def _in_one_thread(self, endpoint: Callable[..., Any]) -> Callable[..., Any]:
        parameters = signature(endpoint).parameters
        guards = {name: guard for name, parameter in parameters.items() if (guard := _guard_of(parameter)) is not None}

        @wraps(endpoint)
        def answer(**arguments: Any) -> Any:
            accepted = ""
            for name, guard in guards.items():
                accepted = arguments[name].headers.get("accept-encoding", "")
                arguments[name] = guard(request=arguments[name])
            return self._written(endpoint(**arguments), arguments.get("response"), accepted)

        deferred = {
            name: parameters[name].replace(annotation=Annotated[Request, Depends(_Later(guard))])
            for name, guard in guards.items()
        }
        answer.__signature__ = signature(endpoint).replace(  # type: ignore[attr-defined]
            parameters=[deferred.get(name, parameter) for name, parameter in parameters.items()]
        )
        return answer

    def _written(self, answer: Any, headers_of: Response | None, accepted_encodings: str) -> Any:
        """Returns a model as the response that FastAPI makes of it, and anything else as it is.

        A long one is compressed if its reader accepts that: lists repeat their names, and shrink to a twentieth.
        """
        if self.response_field is None or not isinstance(answer, BaseModel):
            return answer
        chosen = None if headers_of is None else headers_of.status_code
        content = self.response_field.serialize_json(answer)
        is_long = len(content) >= COMPRESSED_BYTES_MIN
        headers = {"Vary": "Accept-Encoding"} if is_long else {}
        if is_long and "gzip" in accepted_encodings:
            content = gzip.compress(content, compresslevel=1)
            headers["Content-Encoding"] = "gzip"
        status_code = chosen or self.status_code or 200
        response = Response(content, status_code, headers, "application/json")
        if headers_of is not None:
            response.headers.raw.extend(headers_of.headers.raw)
        return response

    def slot(self, request: Request) -> AbstractContextManager[None]:  # noqa: ARG002 - for routes of a limited number
        """Returns what the request holds while its body is read and it is answered."""
        return nullcontext()


class UploadRoute(GuardedRoute):
    """A route of which only a limited number of requests with a body are served at once, and of one user fewer."""

    unguarded_bytes_max = 0

    @contextmanager
    def slot(self, request: Request) -> Iterator[None]:
        """Holds one of the places for uploads. The guards have found the user.

        Raises:
            TooManyInFlightError: None is free.
        """
        if _announced_bytes(request) == 0:
            yield
            return
        uploads: InFlight = request.app.state.context.uploads
        with uploads.place(request.state.user.id):
            yield


class ReportRoute(GuardedRoute):
    """A route on which one large report of a job is answered at a time: it may take a second, and much memory."""

    @contextmanager
    def slot(self, request: Request) -> Iterator[None]:
        """Holds the job's place for large reports, if the guards have found a driver; others send none.

        Raises:
            TooManyInFlightError: Another large report of the job is being read.
        """
        driver = getattr(request.state, "driver", None)
        if driver is None or _announced_bytes(request) <= self.unguarded_bytes_max:
            yield
            return
        reports: InFlight = request.app.state.context.reports
        with reports.place(driver.job_id):
            yield


def _guard_of(parameter: Parameter) -> Callable[..., Any] | None:
    """Returns the dependency of a parameter if it needs the request alone, and waits for something."""
    for each in get_args(parameter.annotation)[1:]:
        call = each.dependency if isinstance(each, Dependency) else None
        if call is not None and not iscoroutinefunction(call) and list(signature(call).parameters) == ["request"]:
            return call
    return None


def _announced_bytes(request: Request) -> float:
    """Returns the size of the body as its sender announces it; a body in chunks may have any size."""
    if "transfer-encoding" in request.headers:
        return float("inf")
    return int(request.headers.get("content-length", "0"))
