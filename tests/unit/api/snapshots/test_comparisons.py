"""Two checkpoints of a job are compared operator by operator, by the content of their files."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.access.principal import Principal
from keyscale.api.control_plane.cursors import Listing, write_cursor
from keyscale.api.errors import PlanTimeoutError
from keyscale.api.snapshots import comparisons as service
from keyscale.api.snapshots.comparisons import _sums, operators_compared
from keyscale.db.models import Checkpoint, CheckpointSubtask, Job
from keyscale.identifiers import CheckpointId, JobId
from keyscale.state.documents.checked_document import DocumentCorruptError
from keyscale.state.layout import Layout, location_of
from keyscale.vocabulary import Role
from tests.support.distinct_values import distinct_row

if TYPE_CHECKING:
    from collections.abc import Iterator


def file(path: str, content: str, size_bytes: int) -> Any:
    return SimpleNamespace(path=path, sha256=content, size_bytes=size_bytes)


def test_files_with_the_same_content_are_shared_wherever_they_are_and_an_object_counts_once() -> None:
    kept, gone = file("a", "kept", 10), file("b", "gone", 3)
    copied, new = file("savepoint/a", "kept", 10), file("c", "new", 500)
    sums = {"count": {"state_size": 99, "entries": 1, "checkpointed_size": 7}}
    newer = {"count": {"state_size": 98, "entries": 2, "checkpointed_size": 8}}
    files = ({"count": [kept, kept, gone]}, {"count": [copied, new, new]})
    [found] = operators_compared(["count"], sums, newer, files)
    assert (found.from_state_size, found.to_state_size) == (13, 510)
    assert (found.from_entries, found.to_entries, found.to_checkpointed_size) == (1, 2, 8)
    assert (found.shared_files, found.only_from_files, found.only_to_files) == (1, 1, 1)
    assert (found.shared_bytes, found.only_from_bytes, found.only_to_bytes) == (10, 3, 500)


def test_an_operator_of_one_of_the_checkpoints_has_nothing_of_the_other() -> None:
    sums = {"old": {"state_size": 5, "entries": 1, "checkpointed_size": 2}}
    newer = {"new": {"state_size": 6, "entries": 3, "checkpointed_size": 4}}
    old, new = operators_compared(["old", "new"], sums, newer, ({"old": [file("a", "a", 5)]}, {}))
    assert (old.from_state_size, old.to_state_size, old.to_entries, old.only_from_bytes) == (5, None, None, 5)
    assert (new.from_state_size, new.to_state_size, new.from_entries) == (None, 6, None)
    assert (new.to_checkpointed_size, new.only_to_files) == (4, 0)


def test_without_their_files_the_subtasks_of_a_checkpoint_say_its_size() -> None:
    sums = {"count": {"state_size": 5, "entries": 1, "checkpointed_size": 2}}
    [found] = operators_compared(["count"], sums, {}, None)
    assert (found.from_state_size, found.to_state_size, found.shared_files) == (5, None, None)


def test_the_sums_of_an_operator_are_those_of_its_subtasks_and_count_shared_files_once() -> None:
    def part(uid: str, number: int, distinct: int | None) -> CheckpointSubtask:
        return CheckpointSubtask(
            operator_uid=uid, subtask=number, state_size=10, distinct_size=distinct, entries=3, checkpointed_size=4
        )

    assert _sums([part("a", 0, 6), part("a", 1, None), part("b", 0, 0)]) == {
        "a": {"state_size": 16, "entries": 6, "checkpointed_size": 8},
        "b": {"state_size": 0, "entries": 3, "checkpointed_size": 4},
    }


PATHS = {number: Layout(JobId("job")).manifest(CheckpointId(number), None) for number in (3, 5)}


class Stored:
    """The checkpoints 3 and 5 of a job, of which the database has forgotten the parts of 5."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows = {
            number: distinct_row(Checkpoint, checkpoint_id=number, external_path=location_of("file:///store", path))
            for number, path in PATHS.items()
        }
        part = CheckpointSubtask(operator_uid="count", state_size=10, entries=3, checkpointed_size=4)
        self.manifests: dict[str, Any] = {
            PATHS[3]: self.manifest(count=[file("a", "a", 10)], kept=[file("b", "b", 20)]),
            PATHS[5]: self.manifest(kept=[file("b", "b", 20)], new=[file("c", "c", 500)]),
        }
        self.noted: list[Any] = []
        self.failure: Exception | None = None
        self.context: Any = SimpleNamespace(
            sessions=lambda: nullcontext(None),
            comparisons=SimpleNamespace(place=self._place),
            settings=SimpleNamespace(plan_timeout_ms=7),
        )
        job = Job(id="job", store_url="file:///store")
        monkeypatch.setattr(service, "require_job", lambda _, name: {"flights": job}[name])
        monkeypatch.setattr(service.checkpoints, "find", lambda _, job_id, number: {"job": self.rows}[job_id][number])
        monkeypatch.setattr(service.checkpoints, "subtasks", lambda _, *key: [part] if key == ("job", 3) else [])
        monkeypatch.setattr(service, "open_to_read", lambda url: f"store {url}")
        monkeypatch.setattr(service, "read_manifest", self._read)
        monkeypatch.setattr(service, "read_within", lambda limit_ms, read, **_: self.noted.append(limit_ms) or read())

    @staticmethod
    def manifest(**operators: list[Any]) -> Any:
        parts = {uid: [SimpleNamespace(files=lambda files=files: files)] for uid, files in operators.items()}
        return SimpleNamespace(operators=[SimpleNamespace(uid=uid, subtasks=each) for uid, each in parts.items()])

    @contextmanager
    def _place(self, user_id: str) -> Iterator[None]:
        self.noted.append(f"place of {user_id}")
        yield
        self.noted.append("left")

    def _read(self, store: str, path: str) -> Any:
        self.noted.append((store, path))
        if self.failure is not None:
            raise self.failure
        return self.manifests[path]

    def compare(self, first: int, second: int, limit: int = 10, after: str | None = None) -> Any:
        user, listing = Principal("id", "ann", Role.VIEWER), Listing(limit, after)
        return service.compare(self.context, user, "flights", first, second, listing)


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Stored:
    return Stored(monkeypatch)


def test_operators_are_those_of_both_checkpoints_and_of_both_manifests(stored: Stored) -> None:
    found = stored.compare(3, 5)
    paths = [("store file:///store", PATHS[number]) for number in (3, 5)]
    assert stored.noted == ["place of id", 7, *paths, "left"]
    assert (found.from_checkpoint.id, found.to_checkpoint.id, found.reason, found.next) == (3, 5, None, None)
    shown = {
        each.uid: (each.from_state_size, each.to_state_size, each.from_entries, each.shared_bytes, each.only_to_bytes)
        for each in found.operators
    }
    assert list(shown.items()) == [
        ("count", (10, None, 3, 0, 0)),
        ("kept", (None, None, None, 20, 0)),
        ("new", (None, None, None, 0, 500)),
    ]
    part = stored.compare(5, 3, 1, write_cursor((1,)))
    assert ([each.uid for each in part.operators], part.next) == (["kept"], write_cursor((2,)))
    assert (part.from_checkpoint.id, part.operators[0].shared_bytes) == (5, 20)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (PlanTimeoutError("slow"), "the store did not answer in time"),
        (PermissionError(13, "Permission denied"), "a manifest cannot be read: Permission denied"),
        (DocumentCorruptError("no JSON"), "a manifest cannot be read: STATE_DOCUMENT_CORRUPT"),
    ],
    ids=["slow", "closed", "damaged"],
)
def test_without_its_manifests_a_comparison_has_the_sizes_of_the_database_and_the_reason(
    stored: Stored, failure: Exception, reason: str
) -> None:
    stored.failure = failure
    found = stored.compare(3, 5)
    [operator] = found.operators
    assert (found.reason, operator.uid, operator.from_state_size, operator.shared_files) == (reason, "count", 10, None)
    stored.rows[5].external_path = None
    stored.noted.clear()
    assert stored.compare(3, 5).reason == stored.compare(5, 3).reason == "checkpoint 5 has no manifest"
    assert stored.noted == ["place of id", "left"] * 2, "the store is not asked"
