"""Routes that know who sends a request before they read a large body."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, ClassVar

from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from keyscale.api.errors import TooManyInFlightError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from typing import Any

    from starlette.requests import Request
    from starlette.responses import Response


class GuardedRoute(APIRoute):
    """Runs the dependencies that need the request alone, such as the check of its token, before its body is read.

    FastAPI reads the body first, so that anybody could make the control plane store hundreds of megabytes.

    Attributes:
        unguarded_bytes_max: A body up to this size is read at once: to look its sender up twice would cost more.
    """

    unguarded_bytes_max: ClassVar[int] = 64 << 10

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        guards = [
            dependency.call
            for dependency in self.dependant.dependencies
            if dependency.call is not None
            and dependency.request_param_name == "request"
            and not iscoroutinefunction(dependency.call)  # it checks nothing
        ]

        async def guarded(request: Request) -> Response:
            if _announced_bytes(request) > self.unguarded_bytes_max:
                for guard in guards:
                    await run_in_threadpool(guard, request=request)
            with self.slot(request):
                return await handle(request)

        return guarded

    def slot(self, request: Request) -> AbstractContextManager[None]:  # noqa: ARG002 - for routes of a limited number
        """Returns what the request holds while its body is read and it is answered."""
        return nullcontext()


class UploadRoute(GuardedRoute):
    """A route of which only a limited number of requests with a body are served at once."""

    unguarded_bytes_max = 0

    @contextmanager
    def slot(self, request: Request) -> Iterator[None]:
        """Holds one of the slots for uploads.

        Raises:
            TooManyInFlightError: None is free.
        """
        if _announced_bytes(request) == 0:
            yield
            return
        uploads = request.app.state.context.uploads
        if not uploads.acquire(blocking=False):
            raise TooManyInFlightError("no more uploads are accepted at once")
        try:
            yield
        finally:
            uploads.release()


def _announced_bytes(request: Request) -> float:
    """Returns the size of the body as its sender announces it; a body in chunks may have any size."""
    if "transfer-encoding" in request.headers:
        return float("inf")
    return int(request.headers.get("content-length", "0"))
