"""Revisions are shown with their programs and changes, and compared without secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale.api.revisions import revisions as service
from keyscale.db.models import Artifact, Job, Operation, Revision
from keyscale.jobs.protocol.specification import JobSpec
from keyscale.vocabulary import ChangePhase, OperationKind, OperationStatus, UpgradeMode

if TYPE_CHECKING:
    import pytest

SESSION: Any = None


def test_a_difference_of_a_parameter_that_is_named_like_a_secret_is_masked() -> None:
    assert "hunter2" not in str(service._masked("parameters.password", "hunter2"))
    assert service._masked("parameters.input", "/in") == "/in"
    assert service._masked("password", "hunter2") == "hunter2", "no parameter of a user"
    assert service._masked("parameters.password", {"secret": "DATABASE"}) == {"secret": "DATABASE"}


def test_a_revision_is_shown_with_its_program_and_the_last_change_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(number: int, artifact_id: str) -> Revision:
        return Revision(
            job_id="job",
            number=number,
            created_at_ms=number,
            created_by="ann",
            message=None,
            artifact_id=artifact_id,
            spec=JobSpec(artifact_id=artifact_id, parallelism=2).given(),
        )

    made = Operation(
        id="c",
        job_id="job",
        kind=OperationKind.UPGRADE,
        status=OperationStatus.COMPLETED,
        phase=ChangePhase.VERIFY,
        phases=[],
        from_revision=1,
        to_revision=2,
        from_parallelism=1,
        to_parallelism=2,
        upgrade_mode=UpgradeMode.SAVEPOINT,
        allow_non_restored_state=False,
        old_attempt=1,
        requested_at_ms=3,
    )
    programs = {"a": Artifact(id="a", name="program", version=6)}
    monkeypatch.setattr(service.artifacts, "find_all", lambda _, ids: {each: programs[each] for each in ids & {"a"}})
    monkeypatch.setattr(service.operations, "last_to", lambda *key: {2: made} if key[1:] == ("job", [2, 1]) else {})
    job = Job(id="job", revision=2)
    second, first = service._revision_answers(SESSION, job, [row(2, "a"), row(1, "gone")])
    assert (second.number, second.is_current, second.artifact_name, second.artifact_version) == (2, True, "program", 6)
    assert second.operation is not None
    assert second.operation.id == "c"
    assert (first.number, first.is_current, first.artifact_name, first.operation) == (1, False, "", None)
