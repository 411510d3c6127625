"""Describes calls of the API as values.

A call knows no connection: the same calls serve threads and event loops.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import parse_qs, quote, urlsplit

from pydantic import BaseModel, ValidationError

from .errors import RefusedError, UnexpectedAnswerError

if TYPE_CHECKING:
    import httpx

    from keyscale.api.shapes import ListAnswer

T = TypeVar("T")
Query = Mapping[str, Any]

REQUEST_TIMEOUT_S = 60.0
PLAN_TIMEOUT_S = 600.0
"""For requests that may load a program."""

PLACE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request and the form of its answer.

    Attributes:
        method: The HTTP method.
        template: The path, with names in braces for its places.
        answer: The model of the answer; `object`: plain JSON; `bytes`: a file; None: no answer.
        places: The values of the path's places.
        query: The parameters; a None or an empty list is left out.
        body: The model or JSON to send.
        form: The fields of a form with a file.
        file: The name and content of the form's file.
        if_match: The version that a change is for.
        is_repeatable: Whether a request that is no GET may be sent again when its answer was lost.
        timeout_s: How long to wait for the next part of the answer.
    """

    method: str
    template: str
    answer: type[T] | None
    places: Mapping[str, str | int] = field(default_factory=dict)
    query: Query = field(default_factory=dict)
    body: BaseModel | Mapping[str, Any] | None = None
    form: Mapping[str, str] = field(default_factory=dict)
    file: tuple[str, bytes] | None = None
    if_match: str | None = None
    is_repeatable: bool = False
    timeout_s: float = REQUEST_TIMEOUT_S

    @property
    def can_be_repeated(self) -> bool:
        """Whether a lost answer may be asked for again."""
        return self.is_repeatable or self.method == "GET"

    @property
    def path(self) -> str:
        """The path, with quoted values, so that they cannot form other paths."""
        return PLACE.sub(lambda place: quote(str(self.places[place[1]]), safe=""), self.template)

    def options(self) -> dict[str, Any]:
        """Returns the arguments of an HTTP client's request."""
        in_path = parse_qs(urlsplit(self.path).query, keep_blank_values=True)  # httpx would drop it
        options: dict[str, Any] = {
            "params": in_path | {name: value for name, value in self.query.items() if value not in (None, (), [])},
            "timeout": self.timeout_s,
        }
        if self.file is not None:
            name, content = self.file
            options["files"] = {"file": (name, content, "application/octet-stream")}
            options["data"] = dict(self.form)
        elif isinstance(self.body, BaseModel):
            options["json"] = self.body.model_dump(mode="json", exclude_unset=True)
        elif self.body is not None:
            options["json"] = dict(self.body)
        if self.if_match is not None:
            options["headers"] = {"If-Match": self.if_match}
        return options

    def read(self, response: httpx.Response) -> T:
        """Returns the answer in a response.

        Raises:
            RefusedError: The control plane refused the request.
            UnexpectedAnswerError: The answer is not of a Keyscale control plane of this version.
        """
        if not response.is_success:
            raise refusal(response)
        if self.answer is None or not response.content:
            return None  # type: ignore[return-value]  # the T of a call without an answer
        if self.answer is bytes:
            return response.content  # type: ignore[return-value]
        try:
            if issubclass(self.answer, BaseModel):
                return self.answer.model_validate_json(response.content)
            return response.json()  # type: ignore[no-any-return]
        except ValidationError as error:
            wrong = ", ".join(".".join(map(str, each["loc"])) for each in error.errors()[:3])
            raise UnexpectedAnswerError(
                f"the answer to {self.method} {response.request.url.path} is not a {self.answer.__name__}: {wrong}"
            ) from None
        except ValueError as error:
            raise UnexpectedAnswerError(
                f"{response.request.url.copy_with(path='/')} did not answer with JSON to {response.request.url.path}"
            ) from error


@dataclass(frozen=True, slots=True)
class Pause:
    """A time to wait before the next step."""

    seconds: float


Steps = Generator[Call[Any] | Pause, Any, T]
"""Several calls that belong together, and what follows from their answers."""


@dataclass(frozen=True, slots=True)
class Pages(Generic[T]):
    """A list in parts.

    Attributes:
        call: Asks for the first part.
        field: The field of the answer with the items.
    """

    call: Call[Any]
    field: str

    def items(self, answer: ListAnswer) -> list[T]:
        """Returns the items of a part."""
        items: list[T] = getattr(answer, self.field)
        return items

    def after(self, answer: ListAnswer) -> Call[Any] | None:
        """Returns the call for the next part; None after the last part."""
        if answer.next is None:
            return None
        return replace(self.call, query={**self.call.query, "after": answer.next})


@dataclass(frozen=True, slots=True)
class Stream(Generic[T]):
    """A stream of server-sent events.

    Attributes:
        call: Opens the stream.
        read: Returns the item of an event, from its name and data.
        is_last: Whether nothing follows an item.
    """

    call: Call[Any]
    read: Callable[[str, Any], T]
    is_last: Callable[[T], bool]


def refusal(response: httpx.Response) -> RefusedError | UnexpectedAnswerError:
    """Returns the error of a response that is a refusal."""
    try:
        problem = response.json()
    except ValueError:
        problem = None
    if isinstance(problem, dict) and "code" in problem:
        return RefusedError(problem, response.status_code)
    url = response.request.url
    return UnexpectedAnswerError(
        f"{url.copy_with(raw_path=b'')} answered {response.status_code} {response.reason_phrase} to {url.path}"
    )
