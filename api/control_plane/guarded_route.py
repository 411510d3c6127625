"""Routes that authenticate before they read a large body.

They answer in one thread.
"""

from __future__ import annotations

import gzip
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from inspect import Parameter, iscoroutinefunction, signature
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.params import Depends as Dependency
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from .dependencies import ContextOf

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from fastapi.dependencies.models import Dependant

    from ..access.in_flight import InFlight


COMPRESSED_BYTES_MIN = 16 << 10
_REQUEST = "incoming_request"


class GuardedRoute(APIRoute):
    """Runs the guards before a large body is read.

    Guards are dependencies that need the request alone, such as the check of its token.

    FastAPI reads the body first, so that every client could make the control plane store hundreds of megabytes.

    It would also run the guard, the endpoint and the check of the answer in a thread each, one after the other. To hand
    a request to a thread and back costs about as much as to read a job, so here one thread does all three.

    FastAPI resolves a dependency anew for each request, which takes as long as the rest of its work. So it sees none of
    the dependencies that need the request alone, the guards and the control plane.

    Attributes:
        unguarded_bytes_max: A body up to this size is read immediately: looking its sender up twice would cost more.
    """

    unguarded_bytes_max: ClassVar[int] = 64 << 10

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        parameters = signature(endpoint).parameters
        self._guards = {name: guard for name, each in parameters.items() if (guard := _guard_of(each)) is not None}
        super().__init__(path, self._of_request(endpoint), **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        guards = tuple(self._guards.values())
        known = _query_names(self.dependant) if self.include_in_schema else None
        may_lack_body = self.body_field is not None and not self.body_field.field_info.is_required()

        async def guarded(request: Request) -> Response:
            if _announced_bytes(request) > self.unguarded_bytes_max:
                for guard in guards:
                    await run_in_threadpool(guard, request=request)
            with self.slot(request):
                try:
                    if known is not None:
                        _refuse_unknown_query(request, known)
                    if may_lack_body:
                        await _refuse_null(request)
                    return await handle(request)
                except RequestValidationError:
                    for guard in guards:  # only an authorized sender learns what is wrong with the request
                        await run_in_threadpool(guard, request=request)
                    raise

        return guarded

    def _of_request(self, endpoint: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the endpoint with the request in place of its dependencies."""
        parameters = signature(endpoint).parameters
        contexts = [name for name, each in parameters.items() if each.annotation == ContextOf]
        own = next((name for name, each in parameters.items() if each.annotation is Request), None)
        guards = self._guards

        def begin(arguments: dict[str, Any]) -> Request:
            request: Request = arguments.pop(_REQUEST) if own is None else arguments[own]
            arguments.update(dict.fromkeys(contexts, request.app.state.context) if contexts else {})
            return request

        def written(answer: Any, arguments: dict[str, Any], request: Request) -> Any:
            return self._written(answer, arguments.get("response"), request.headers.get("accept-encoding", ""))

        def answer(**arguments: Any) -> Any:
            request = begin(arguments)
            for name, guard in guards.items():
                arguments[name] = guard(request=request)
            return written(endpoint(**arguments), arguments, request)

        async def answer_in_loop(**arguments: Any) -> Any:
            request = begin(arguments)
            for name, guard in guards.items():
                arguments[name] = await run_in_threadpool(guard, request=request)
            return written(await endpoint(**arguments), arguments, request)

        rest = [each for name, each in parameters.items() if name not in {*guards, *contexts}]
        if own is None:
            rest.append(Parameter(_REQUEST, Parameter.KEYWORD_ONLY, annotation=Request))
        of_request = wraps(endpoint)(answer_in_loop if iscoroutinefunction(endpoint) else answer)
        of_request.__signature__ = signature(endpoint).replace(parameters=rest)  # type: ignore[attr-defined]
        return of_request

    def _written(self, answer: Any, headers_of: Response | None, accepted_encodings: str) -> Any:
        """Returns a model as FastAPI's response, and other answers unchanged.

        A long answer is compressed if its reader accepts that: lists repeat their names, and shrink to a twentieth.
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
        """Returns the resource that the request holds until it is answered."""
        return nullcontext()


class UploadRoute(GuardedRoute):
    """A route with a limited number of concurrent requests with a body.

    Each user has a lower limit.
    """

    unguarded_bytes_max = 0

    @contextmanager
    def slot(self, request: Request) -> Iterator[None]:
        """Holds one of the places for uploads.

        The guards have found the user.

        Raises:
            TooManyInFlightError: All places are taken.
        """
        if _announced_bytes(request) == 0:
            yield
            return
        uploads: InFlight = request.app.state.context.uploads
        with uploads.place(request.state.user.id):
            yield


class ReportRoute(GuardedRoute):
    """A route that answers a job's large reports one by one.

    A large report may take a second, and much memory.
    """

    @contextmanager
    def slot(self, request: Request) -> Iterator[None]:
        """Holds the job's place for large reports.

        Only drivers send large reports; the guards have found the driver.

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
    """Returns the dependency of a parameter if it is a guard.

    A guard needs the request alone, and waits.
    """
    for each in get_args(parameter.annotation)[1:]:
        call = each.dependency if isinstance(each, Dependency) else None
        if call is not None and not iscoroutinefunction(call) and list(signature(call).parameters) == ["request"]:
            return call
    return None


def _query_names(dependant: Dependant) -> frozenset[str]:
    """Returns the names of a route's query parameters."""
    own = {field.alias for field in dependant.query_params}
    return frozenset(own.union(*(_query_names(dependency) for dependency in dependant.dependencies)))


def _refuse_unknown_query(request: Request, known: frozenset[str]) -> None:
    """Refuses a query parameter that the route does not have.

    To ignore a misspelt `dry_run` would delete what the sender wants to keep, and a misspelt filter would show all.

    Raises:
        RequestValidationError: A parameter is unknown.
    """
    if unknown := [name for name in request.query_params if name not in known]:
        message = f"The query parameters are: {', '.join(sorted(known)) or 'none'}"
        raise RequestValidationError([{"loc": ("query", name), "msg": message} for name in unknown])


async def _refuse_null(request: Request) -> None:
    """Refuses a null in place of an optional body.

    FastAPI takes it for no body. A client that sends a null has forgotten its arguments, and would stop a job.

    Raises:
        RequestValidationError: The body is null.
    """
    if (await request.body()).strip() == b"null":
        raise RequestValidationError([{"loc": ("body",), "msg": "Input should be a JSON object, or no body"}])


def _announced_bytes(request: Request) -> float:
    """Returns the announced size of the body.

    A body in chunks may have any size.
    """
    if "transfer-encoding" in request.headers:
        return float("inf")
    return int(request.headers.get("content-length", "0"))
