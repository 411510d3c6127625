"""Each method of the client is a route of the OpenAPI document and sends its arguments; each route has a method."""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from keyscale.api.operations.schemas.operation import OperationRequest
from keyscale.api.settings import Settings
from keyscale.api.web.app import create_app, make_context
from keyscale.api.web.openapi import describe
from keyscale.client.call import PLACE, PLAN_TIMEOUT_S, REQUEST_TIMEOUT_S, Call, Pages, Stream
from keyscale.client.keyscale import NOUNS
from keyscale.client.method import ListMethod, Method, StreamMethod

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

ARTIFACT_ID = "5f0c3f6f5a6e4a6f9d1e0b7c8a9b0c1d"
SAMPLES: dict[str, Any] = {
    "job": "flights",
    "number": 7,
    "to": 8,
    "content": b"",
    "name": "flights",
    "artifact_id": ARTIFACT_ID,
    "parallelism": 2,
    "revision": 3,
    "role": "VIEWER",
    "labels": {},
    "kind": "STOP",
    "Diagnostics.request.kind": "THREAD_DUMP",
    "arguments": OperationRequest(),
    "statement": "select 1",
    "operator": "counts",
    "state": "clicks",
    "key": "ada",
    "changes": [{"operator": "counts", "state": "clicks", "key": "ada", "value": 1}],
    "target": "https://alerts.example.com/hook",
    "spec": {"artifact_id": ARTIFACT_ID},
}
"""Values of required arguments; the rest are texts."""
BY_THE_CLIENT = {"seconds"}
"""Parameters that the client sets itself, as it opens streams again."""


OF_OTHER_PROGRAMS = {("GET", "/metrics"), ("GET", "/v1/events/export")}
"""Routes with text that other programs read; the client lists events."""

OWN_VALUES: dict[str, Any] = {
    "changes": [{"operator": "counts", "state": "clicks", "key": "ada", "value": 1}],
    "id": "own",
    "checkpoint_id": 1009,
    "arguments": OperationRequest(id="own"),
}
"""Values of arguments that the client looks at; the rest are texts that name their parameter."""
WAITS = {"timeout_s"}
"""Parameters of the client's own loops."""
READS_A_PROGRAM_OR_STATE = {
    "Artifacts.check",
    "Checkpoints.delete",
    "Jobs.clone",
    "Jobs.recover",
    "Jobs.rescale",
    "Jobs.rollback",
    "Jobs.update",
    "Operations.request",
    "Savepoints.delete",
    "States.change",
    "States.change_all",
    "States.get",
    "States.get_all",
    "States.history",
}
"""Methods whose answer may take minutes."""


@dataclass(frozen=True)
class Described:
    """A method of the client and its call."""

    name: str
    call: Call[Any]
    is_list: bool = False


def declared_methods() -> Iterator[tuple[str, Any]]:
    for noun in NOUNS:
        for name, method in vars(noun).items():
            if isinstance(method, (Method, ListMethod, StreamMethod)):
                if name == "upload":
                    continue  # reads a file; upload_content sends the same
                yield f"{noun.__name__}.{name}", method


def described(name: str, method: Method[Any, Any] | ListMethod[Any, Any] | StreamMethod[Any, Any]) -> Described:
    parameters = list(inspect.signature(method.function).parameters.values())[1:]
    own = [each for each in parameters if each.kind is each.POSITIONAL_ONLY or each.kind is each.POSITIONAL_OR_KEYWORD]
    arguments = [SAMPLES.get(each.name, "text") for each in own if each.default is each.empty]
    options = {}
    request = getattr(method, "request", None)
    if request is not None:
        required = [field for field, info in request.model_fields.items() if info.is_required()]
        options = {field: SAMPLES.get(f"{name}.{field}", SAMPLES[field]) for field in required}
    answer = method.function(None, *arguments, **options)
    if inspect.isgenerator(answer):
        steps: Generator[Call[Any], Any, Any] = answer
        return Described(name, next(steps))
    if isinstance(answer, Pages):
        return Described(name, answer.call, is_list=True)
    return Described(name, answer.call if isinstance(answer, Stream) else answer)


def with_all_arguments(name: str, method: Any) -> tuple[Call[Any], list[tuple[str, Any]]]:
    """Returns the call with a value of its own for each parameter and required field, and these values."""
    parameters = list(inspect.signature(method.function).parameters.values())[1:]
    own = [each for each in parameters if each.name not in WAITS]
    positional = [(each.name, f"the {each.name}") for each in own if each.kind is each.POSITIONAL_ONLY]
    by_name = {
        each.name: OWN_VALUES.get(each.name, f"the {each.name}")
        for each in own
        if each.kind in {each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY}
    }
    request = getattr(method, "request", None)
    if request is not None:
        required = [field for field, info in request.model_fields.items() if info.is_required()]
        by_name |= {field: SAMPLES.get(f"{name}.{field}", SAMPLES[field]) for field in required}
    answer = method.function(None, *(value for _, value in positional), **by_name)
    if inspect.isgenerator(answer):
        answer = next(answer)
    return answer if isinstance(answer, Call) else answer.call, [*positional, *by_name.items()]


def sent_by(call: Call[Any]) -> dict[str, Any]:
    """Returns what a call sends beside its path, by the names of the client's parameters."""
    body = call.body.model_dump(mode="json", exclude_unset=True) if isinstance(call.body, BaseModel) else call.body
    filename, content = call.file or (None, None)
    revision = None if call.if_match is None else call.if_match.strip('"')
    return {"filename": filename, "content": content, "revision": revision, **call.query, **call.form, **(body or {})}


DECLARED = list(declared_methods())
METHODS = [described(*each) for each in DECLARED]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("home")
    settings = Settings(home=home, store_url=home.as_uri(), database_url="postgresql+psycopg://127.0.0.1:1/none")
    context = make_context(settings)
    document = describe(create_app(context, reconcile=False))
    context.engine.dispose()
    return document


def differences(method: Described, document: dict[str, Any]) -> list[str]:
    """Says in what a method differs from the route that it calls."""
    call = method.call
    route = document["paths"].get(call.template, {}).get(call.method.lower())
    if route is None:
        return [f"there is no route {call.method} {call.template}"]
    found = []
    parameters = route.get("parameters", [])
    places = {each["name"] for each in parameters if each["in"] == "path"}
    if not places == set(PLACE.findall(call.template)) == set(call.places):
        found.append(f"places: {set(call.places)}")
    query = {each["name"] for each in parameters if each["in"] == "query"}
    is_part = {"after", "limit"} <= query
    asked = query - BY_THE_CLIENT - ({"after"} if is_part else set())
    if set(call.query) != asked:
        found.append(f"query: {set(call.query)}, not {asked}")
    if is_part > method.is_list and "limit" not in call.query:
        found.append("it reads one part of a list")
    if (call.if_match is not None) != any(each["name"].lower() == "if-match" for each in parameters):
        found.append("If-Match")
    if body_of(call) not in sent_of(route):
        found.append(f"body: {body_of(call)}, not {sent_of(route)}")
    if (answer_of(call)) not in answers_of(route):
        found.append(f"answer: {answer_of(call)}, not {answers_of(route)}")
    return found


def body_of(call: Call[Any]) -> str | None:
    if call.file is not None:
        return "form"
    return type(call.body).__name__ if isinstance(call.body, BaseModel) else None


def sent_of(route: dict[str, Any]) -> set[str | None]:
    content = route.get("requestBody", {}).get("content", {})
    if "multipart/form-data" in content:
        return {"form"}
    return named(content["application/json"]["schema"]) if content else {None}


def named(schema: dict[str, Any]) -> set[str | None]:
    """Returns the names of a schema's models.

    None stands for a plain value, which can also be one of several models.
    """
    options = [schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())]
    names: set[str | None] = {each["$ref"].rsplit("/", 1)[1] for each in options if "$ref" in each}
    return names | {None} if "oneOf" in schema or not names else names


def answer_of(call: Call[Any]) -> str | None:
    is_model = call.answer is not None and issubclass(call.answer, BaseModel)
    return call.answer.__name__ if is_model and call.answer is not None else None


def answers_of(route: dict[str, Any]) -> set[str | None]:
    found: set[str | None] = set()
    for status, answer in route["responses"].items():
        if status.startswith("2"):
            content = answer.get("content", {})
            found |= named(content["application/json"]["schema"]) if "application/json" in content else {None}
    return found


@pytest.mark.parametrize("method", METHODS, ids=[each.name for each in METHODS])
def test_a_method_calls_a_route_as_the_document_describes_it(method: Described, document: dict[str, Any]) -> None:
    assert differences(method, document) == []


@pytest.mark.parametrize(("name", "method"), DECLARED, ids=[each.name for each in METHODS])
def test_a_method_hands_every_argument_on_under_its_name(name: str, method: Any) -> None:
    call, given = with_all_arguments(name, method)
    placed = [call.places[place] for place in PLACE.findall(call.template)]
    assert placed == [value for _, value in given[: len(placed)]], "the path"
    rest = dict(given[len(placed) :])
    if (request := rest.pop("arguments", None)) is not None:
        rest |= request.model_dump(exclude_unset=True)
    sent = sent_by(call)
    assert {each: sent.get(each) for each in rest} == rest


def test_only_methods_that_read_a_program_or_state_wait_for_minutes() -> None:
    limits = {each.name: each.call.timeout_s for each in METHODS}
    expected = {name: PLAN_TIMEOUT_S if name in READS_A_PROGRAM_OR_STATE else REQUEST_TIMEOUT_S for name in limits}
    assert limits == expected


def test_every_route_has_a_method(document: dict[str, Any]) -> None:
    called = {(each.call.method, each.call.template) for each in METHODS}
    routes = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    short_forms = ("POST", "/v1/jobs/{job_id}/operations")  # each kind has its own route and method
    assert sorted(routes - called - OF_OTHER_PROGRAMS - {short_forms}) == []


def test_each_difference_is_noticed(document: dict[str, Any]) -> None:
    method = next(each for each in METHODS if each.name == "Jobs.update")
    for change in (
        lambda route: route["parameters"].append({"in": "query", "name": "more"}),
        lambda route: route["parameters"].append({"in": "path", "name": "more"}),
        lambda route: route["parameters"].remove(next(e for e in route["parameters"] if e["in"] == "header")),
        lambda route: route["requestBody"]["content"]["application/json"].update(schema={"$ref": "#/x/Other"}),
        lambda route: route["responses"].clear(),
    ):
        other = copy.deepcopy(document)
        assert differences(method, other) == []
        change(other["paths"][method.call.template][method.call.method.lower()])
        assert len(differences(method, other)) == 1
    assert differences(method, {"paths": {}}) != []
