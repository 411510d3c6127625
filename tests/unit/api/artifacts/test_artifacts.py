"""An upload is a new version, unless its sender already sees a version with the same bytes."""

from __future__ import annotations

import io
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.access.principal import Principal
from keyscale.api.artifacts import artifacts as service
from keyscale.api.errors import BodyTooLargeError
from keyscale.db.job_scope import JobScope
from keyscale.vocabulary import Role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale.db.models import Artifact

USER = Principal("me", "ann", Role.OPERATOR, JobScope(frozenset({"flights"})))
CONTENT = b"print()\n"


class Stored:
    """The artifacts of a control plane."""

    def __init__(self) -> None:
        self.rows: list[Artifact] = []
        self.visible: set[str] = set()
        self.bytes: dict[str, bytes] = {}
        self.steps: list[str] = []
        self.context: Any = SimpleNamespace(
            sessions=self, inspections=nullcontext(), settings=SimpleNamespace(artifact_bytes_max=len(CONTENT))
        )

    @contextmanager
    def begin(self) -> Iterator[Any]:
        yield SimpleNamespace(add=self.rows.append, flush=lambda: None)

    def find_version(self, _: Any, name: str, sha256: str) -> Artifact | None:
        return next((each for each in self.rows if (each.name, each.sha256) == (name, sha256)), None)

    def is_visible(self, _: Any, artifact_id: str, *, scope: JobScope, user_id: str) -> bool:
        assert (scope, user_id) == (USER.scope, "me")
        return artifact_id in self.visible

    def add_bytes(self, _: Any, sha256: str, chunks: Iterator[bytes]) -> None:
        self.bytes[sha256] = b"".join(chunks)


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Stored:
    stored = Stored()
    repository = service.artifacts
    monkeypatch.setattr(repository, "lock_writers", lambda _: stored.steps.append("locked"))
    monkeypatch.setattr(repository, "find_version", stored.find_version)
    monkeypatch.setattr(repository, "is_visible", stored.is_visible)
    monkeypatch.setattr(repository, "next_version", lambda *_: len(stored.rows) + 1)
    monkeypatch.setattr(repository, "has_bytes", lambda _, sha256: sha256 in stored.bytes)
    monkeypatch.setattr(repository, "add_bytes", stored.add_bytes)
    monkeypatch.setattr(service.events, "record", lambda *_, **event: stored.steps.append(event["kind"]))
    monkeypatch.setattr(service, "inspect_artifact", lambda *_: ("PYTHON", SimpleNamespace(model_dump=dict)))
    monkeypatch.setattr(service, "_answers", lambda _session, _user, shown: list(shown))
    return stored


def upload(stored: Stored, content: bytes = CONTENT) -> Any:
    stored.steps.clear()
    return service.upload(stored.context, USER, io.BytesIO(content), "dir\\flights.py", None)


def test_the_same_bytes_are_one_version_for_those_who_see_it(stored: Stored) -> None:
    first, is_new = upload(stored)
    assert (first.name, first.version, first.filename, is_new) == ("flights", 1, "flights.py", True)
    assert stored.bytes == {first.sha256: CONTENT}
    assert stored.steps == ["locked", "ARTIFACT_UPLOADED"]
    stored.visible.add(first.id)
    assert upload(stored) == (first, False)
    assert stored.steps == ["locked"]


def test_a_version_that_its_sender_may_not_see_is_not_the_answer(stored: Stored) -> None:
    hidden, _ = upload(stored)
    own, is_new = upload(stored)
    assert (own.version, own.sha256, is_new) == (2, hidden.sha256, True)
    assert own.id != hidden.id


def test_a_file_that_is_too_large_is_not_stored(stored: Stored) -> None:
    with pytest.raises(BodyTooLargeError):
        upload(stored, CONTENT + b"\n")
    assert (stored.rows, stored.bytes) == ([], {})
