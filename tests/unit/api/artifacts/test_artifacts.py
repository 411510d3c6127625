"""An upload is a new version, unless its sender already sees a version with the same bytes."""

from __future__ import annotations

import hashlib
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
from tests.support.distinct_values import distinct_row, uncarried

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


@pytest.mark.parametrize(
    ("filename", "name", "kind", "shown"),
    [
        ("dir/Shapes-1.0-py3-none-any.whl", None, "WHEEL", ("Shapes", "Shapes-1.0-py3-none-any.whl")),
        ("dir/Shapes-1.0-py3-none-any.whl", "mine", "WHEEL", ("mine", "Shapes-1.0-py3-none-any.whl")),
        ("job.zip", None, "ZIP", ("job", "job.zip")),
        ("job.zip", "mine.zip", "ZIP", ("mine.zip", "mine.zip")),
        ("job.py", "mine", "PYTHON", ("mine", "mine.py")),
    ],
)
def test_an_upload_is_stored_with_its_sender_its_kind_and_what_is_in_it(  # noqa: PLR0917 - a table
    stored: Stored,
    monkeypatch: pytest.MonkeyPatch,
    filename: str,
    name: str | None,
    kind: str,
    shown: tuple[str, str],
) -> None:
    told: list[Any] = []
    content, contents = io.BytesIO(CONTENT), SimpleNamespace(model_dump=lambda: {"modules": ["shapes"]})
    plain = filename.removeprefix("dir/")
    monkeypatch.setattr(service, "inspect_artifact", lambda *of: {(content, plain): (kind, contents)}[of])
    monkeypatch.setattr(service, "installed_platform", lambda: "the platform")
    monkeypatch.setattr(service, "check_wheel", lambda *of: told.append(of))
    monkeypatch.setattr(service.events, "record", lambda _, **event: told.append(event))
    monkeypatch.setattr(service, "uuid", SimpleNamespace(uuid4=lambda: SimpleNamespace(hex="new")))
    monkeypatch.setattr(service, "now_ms", lambda: 70)
    stored.rows.append(Artifact(name="another", sha256="x"))
    service.upload(stored.context, USER, content, filename, name)
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    columns = {
        "id": "new",
        "name": shown[0],
        "version": 2,
        "filename": shown[1],
        "kind": kind,
        "sha256": sha256,
        "size_bytes": len(CONTENT),
        "created_at_ms": 70,
        "uploaded_by": "me",
        "contents": {"modules": ["shapes"]},
    }
    assert {column: getattr(stored.rows[-1], column) for column in columns} == columns
    *checked, event = told
    wheel = service.Library(plain, kind, sha256, contents)  # type: ignore[arg-type]
    assert checked == ([(wheel, "the platform")] if kind == "WHEEL" else [])
    assert event == {
        "job_id": None,
        "at_ms": 70,
        "kind": "ARTIFACT_UPLOADED",
        "actor": "ann",
        "message": f"uploaded {shown[0]} version 2",
        "artifact_id": "new",
        "sha256": sha256,
    }


def test_an_artifact_is_shown_with_its_uploader_and_the_jobs_that_its_reader_may_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [distinct_row(Artifact, id=name, created_at_ms=at_ms) for name, at_ms in (("a", 5), ("b", 6))]
    session: Any = None
    uploaders = {(5, 6): {"a": "ann"}}

    def jobs_using(_: Any, ids: list[str], scope: JobScope) -> dict[str, list[str]]:
        assert (ids, scope) == (["a", "b"], USER.scope)
        return {"a": ["flights"], "b": []}

    monkeypatch.setattr(service.events, "uploaders", lambda _, times: uploaders[tuple(times)])
    monkeypatch.setattr(service.artifacts, "jobs_using", jobs_using)
    shown = service._answers(session, USER, rows)
    assert [(each.id, each.uploaded_by, each.used_by) for each in shown] == [("a", "ann", ["flights"]), ("b", None, [])]
    for row, answer in zip(rows, shown, strict=True):
        assert uncarried(row, answer, renamed={}, derived={"uploaded_by", "used_by"}) == {}


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
