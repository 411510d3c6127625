"""Methods of the client, declared once for threads and event loops.

`Jobs.get` is declared as a function that returns a call. `Keyscale().jobs.get` sends the call and returns the answer;
`AsyncKeyscale().jobs.get` returns an awaitable of the answer.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from .call import PLACE, PLAN_TIMEOUT_S, REQUEST_TIMEOUT_S, Call, Pages, Steps, Stream
from .sender import AsyncSender, Sender

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from keyscale.api.shapes import Request

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R", bound="Request")
S = TypeVar("S", Sender, AsyncSender)

ID_FIELD = "id"
"""The field by which a control plane recognizes a repeated request."""


class Noun(Generic[S]):
    """The calls about one noun of the API.

    Args:
        sender: Sends the calls.
    """

    def __init__(self, sender: S) -> None:
        self.sender: S = sender


class Method(Generic[P, T]):
    """A method that sends a call, or carries out steps.

    Args:
        function: Returns the call or the steps.
        request: The model whose fields are arguments of the method; None: it has none.
    """

    def __init__(
        self, function: Callable[Concatenate[Any, P], Call[T] | Steps[T]], request: Callable[..., Request] | None = None
    ) -> None:
        self.function = function
        self.request = request
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, noun: None, owner: type) -> Self: ...
    @overload
    def __get__(self, noun: Noun[Sender], owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, noun: Noun[AsyncSender], owner: type) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, noun: Noun[Any] | None, owner: type) -> Any:
        if noun is None:
            return self

        @wraps(self.function)
        def method(*arguments: P.args, **options: P.kwargs) -> Any:
            return noun.sender.run(self.function(noun, *arguments, **options))

        return method


class ListMethod(Generic[P, T]):
    """A method that iterates over a list, part by part.

    Args:
        function: Returns the list's parts.
    """

    def __init__(self, function: Callable[Concatenate[Any, P], Pages[T]]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, noun: None, owner: type) -> Self: ...
    @overload
    def __get__(self, noun: Noun[Sender], owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, noun: Noun[AsyncSender], owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, noun: Noun[Any] | None, owner: type) -> Any:
        if noun is None:
            return self

        @wraps(self.function)
        def method(*arguments: P.args, **options: P.kwargs) -> Any:
            return noun.sender.pages(self.function(noun, *arguments, **options))

        return method


class StreamMethod(Generic[P, T]):
    """A method that iterates over a stream of events.

    Args:
        function: Returns the stream.
    """

    def __init__(self, function: Callable[Concatenate[Any, P], Stream[T]]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, noun: None, owner: type) -> Self: ...
    @overload
    def __get__(self, noun: Noun[Sender], owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, noun: Noun[AsyncSender], owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, noun: Noun[Any] | None, owner: type) -> Any:
        if noun is None:
            return self

        @wraps(self.function)
        def method(*arguments: P.args, **options: P.kwargs) -> Any:
            return noun.sender.stream(self.function(noun, *arguments, **options))

        return method


def creation(
    template: str, request: Callable[P, R], answer: type[A], *, timeout_s: float = REQUEST_TIMEOUT_S
) -> Method[P, A]:
    """Returns a method that takes a request's fields and posts them."""

    def call(_: object, /, *arguments: P.args, **fields: P.kwargs) -> Call[A]:
        return replace(_sent("POST", template, {}, request(*arguments, **fields), answer), timeout_s=timeout_s)

    return Method(call, request)


def action(
    template: str,
    request: Callable[P, R],
    answer: type[A],
    *,
    method: str = "POST",
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> Method[Concatenate[str, P], A]:
    """Returns a method that sends a request about one thing.

    Its arguments are the thing's name, and the fields of the request.
    """

    def call(_: object, name: str, /, *arguments: P.args, **fields: P.kwargs) -> Call[A]:
        sent = _sent(method, template, _places(template, name), request(*arguments, **fields), answer)
        return replace(sent, timeout_s=timeout_s)

    return Method(call, request)


def part_action(template: str, request: Callable[P, R], answer: type[A]) -> Method[Concatenate[str, str | int, P], A]:
    """Returns a method that posts a request about a job's part."""

    def call(_: object, job: str, part: str | int, /, *arguments: P.args, **fields: P.kwargs) -> Call[A]:
        return _sent("POST", template, _places(template, job, part), request(*arguments, **fields), answer)

    return Method(call, request)


def change(template: str, request: Callable[P, R], answer: type[A]) -> Method[Concatenate[str, int, P], A]:
    """Returns a method that changes one revision of a thing.

    Its arguments are the thing's name, the number of the revision, and the fields of the request.
    """

    def call(_: object, name: str, revision: int, /, *arguments: P.args, **fields: P.kwargs) -> Call[A]:
        sent = _sent("PATCH", template, _places(template, name), request(*arguments, **fields), answer)
        return replace(sent, if_match=f'"{revision}"', timeout_s=PLAN_TIMEOUT_S)

    return Method(call, request)


def _places(template: str, *values: str | int) -> dict[str, str | int]:
    return dict(zip(PLACE.findall(template), values, strict=True))


def identified(request: R) -> R:
    """Gives a request an id, if it may have an id."""
    if ID_FIELD in type(request).model_fields and getattr(request, ID_FIELD) is None:
        return request.model_copy(update={ID_FIELD: uuid.uuid4().hex})
    return request


def _sent(method: str, template: str, places: dict[str, str | int], request: Request, answer: type[A]) -> Call[A]:
    """Returns the call of a request."""
    is_repeatable = ID_FIELD in type(request).model_fields or method == "PUT"
    return Call(method, template, answer, places, body=identified(request), is_repeatable=is_repeatable)
