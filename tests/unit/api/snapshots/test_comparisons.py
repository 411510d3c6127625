"""Two checkpoints of a job are compared operator by operator, by the content of their files."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from keyscale.api.snapshots.comparisons import _sums, operators_compared
from keyscale.db.models import CheckpointSubtask


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
