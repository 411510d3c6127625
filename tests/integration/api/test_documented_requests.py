"""Every request that a page shows by `curl` is one that the API describes, with these parameters and fields."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.support.repository import DOCS, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx

pytestmark = pytest.mark.real

CLIENTS = {"curl", "ask", "call"}
"""Programs, and the functions that the pages define around them."""
_BLOCK = re.compile(r"^```bash\n(.*?)^```", re.DOTALL | re.MULTILINE)
_ADDRESS = re.compile(r"(\$URL|\$API|http://127\.0\.0\.1:8080)(/[^ ]*)")


@dataclass
class Shown:
    """A request as a page shows it."""

    method: str = "GET"
    path: str = ""
    query: list[str] = field(default_factory=list)
    body: Any = None

    @classmethod
    def of(cls, words: list[str]) -> Shown:
        shown = cls()
        for option, word in zip(["", *words], words, strict=False):
            if option == "-X":
                shown.method = word
            elif option in {"-d", "--json"}:
                shown.body, shown.method = json.loads(word), "POST" if shown.method == "GET" else shown.method
            elif option == "-F":
                shown.method = "POST"
            elif address := _ADDRESS.fullmatch(word):
                shown.path = urlsplit(address[2]).path
                shown.query = [name for name, _ in parse_qsl(urlsplit(address[2]).query)]
        return shown


def shown_on(page: Path) -> Iterator[Shown]:
    for block in _BLOCK.findall(page.read_text(encoding="utf-8")):
        yield from shown_in(block)


def shown_in(commands: str) -> Iterator[Shown]:
    words = shlex.shlex(commands.replace("\\\n", " "), posix=True, punctuation_chars=True)
    words.whitespace_split = True
    request: list[str] | None = None
    for word in [*words, "|"]:
        if request is not None and (word in CLIENTS or set(word) <= set("|();<>&")):
            if (shown := Shown.of(request)).path:
                yield shown
            request = None
        if word in CLIENTS:
            request = []
        elif request is not None:
            request.append(word)


def test_the_requests_that_pages_show_are_described(client: httpx.Client) -> None:
    document = client.get("/v1/openapi.json").json()
    pages = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    requests = [(page.name, shown) for page in pages for shown in shown_on(page)]
    assert len([page for page, _ in requests if page == "dashboard.md"]) > 30
    assert [(page, shown, fault) for page, shown in requests if (fault := fault_of(shown, document))] == []
    for wrong in (
        "$URL/jobs/visits/nothing",
        "-X DELETE $URL/jobs",
        "$URL/jobs?order=1",
        "-d '{\"most\": 1}' $URL/jobs",
    ):
        (shown,) = shown_in(f"ask {wrong}")
        assert fault_of(shown, document), wrong


def fault_of(shown: Shown, document: dict[str, Any]) -> str:
    """Says how a request differs from the API's description; an empty string if it does not."""
    operation = described(document, shown)
    if operation is None:
        return "no such route"
    known = {each["name"] for each in operation.get("parameters", []) if each["in"] == "query"}
    if unknown := set(shown.query) - known:
        return f"no such parameters: {unknown}"
    if shown.body is not None:
        content = operation["requestBody"]["content"]["application/json"]["schema"]
        if unknown := set(shown.body) - set(resolved(document, content)["properties"]):
            return f"no such fields: {unknown}"
    return ""


def described(document: dict[str, Any], shown: Shown) -> dict[str, Any] | None:
    """Returns the operation of a request; a path that is written out wins over one with parameters."""
    for path in sorted(document["paths"], key=lambda path: path.count("{")):
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), shown.path):
            found: dict[str, Any] | None = document["paths"][path].get(shown.method.lower())
            if found is not None:
                return found
    return None


def resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Follows a reference, and takes of an optional body the one that is there."""
    for choice in schema.get("anyOf", ()):
        if "$ref" in choice:
            schema = choice
    if "$ref" in schema:
        found: dict[str, Any] = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return found
    return schema
