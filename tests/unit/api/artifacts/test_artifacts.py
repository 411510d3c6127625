"""An upload is a new version, unless its sender already sees a version with the same bytes."""

from __future__ import annotations

import io
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.access.principal import Principal
from keyscale.api.artifacts import artifacts as service
from keyscale.api.errors import ArtifactInUseError, ArtifactNotFoundError, BodyTooLargeError
from keyscale.db.job_scope import JobScope
from keyscale.db.models import Artifact
from keyscale.vocabulary import Role

if TYPE_CHECKING:
    from collections.abc import Iterator

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


@pytest.mark.parametrize(
    ("uses", "refusal"),
    [
        ([("flights", 3), ("flights", 3)], "^revision 3 of job flights uses clicks version 5$"),
        ([None, ("secret", 4)], "^a job that you may not see uses clicks version 5$"),
        ([None, None], None),
    ],
    ids=["of a job of the user", "of a hidden job", "unused"],
)
def test_an_artifact_in_use_is_not_deleted_and_a_hidden_job_is_not_named(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, uses: list[tuple[str, int] | None], refusal: str | None
) -> None:
    """`uses`: of a job that the user may see, and of any job."""
    found = Artifact(id="a", name="clicks", version=5)
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(service.artifacts, "find", lambda _, artifact_id: {"a": found}.get(artifact_id))
    monkeypatch.setattr(service.artifacts, "first_use", lambda _, __, scope=None: uses[scope is None])
    monkeypatch.setattr(service.artifacts, "remove", lambda _, row: stored.steps.append(f"removed {row.id}"))
    monkeypatch.setattr(service.events, "record", lambda _, **event: told.append(event))
    monkeypatch.setattr(service, "now_ms", lambda: 70)
    if refusal is not None:
        with pytest.raises(ArtifactInUseError, match=refusal):
            service.delete(stored.context, USER, "a")
        assert (stored.steps, told) == (["locked"], [])
        return
    service.delete(stored.context, USER, "a")
    assert stored.steps == ["locked", "removed a"]
    of_event = {"actor": "ann", "message": "deleted clicks version 5", "artifact_id": "a"}
    assert told == [{"job_id": None, "at_ms": 70, "kind": "ARTIFACT_DELETED", **of_event}]
    with pytest.raises(ArtifactNotFoundError):
        service.delete(stored.context, USER, "b")
