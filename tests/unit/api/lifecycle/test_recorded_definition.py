"""The record of a job has everything from which a lost job is rebuilt, and no value of a secret."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from keyscale.api.lifecycle import recorded_definition
from keyscale.api.lifecycle.recorded_definition import record_of
from keyscale.db.models import Attempt, Job, Revision
from keyscale.identifiers import Attempt as AttemptNumber
from keyscale.identifiers import JobId
from keyscale.jobs.protocol.specification import JobSpec
from keyscale.state.doors.catalogue import JobRecord, RecordedArtifact, RecordedOrigin, RecordedRestore
from keyscale.vocabulary import ArtifactKind, AttemptStage, ClaimMode, RestoreMode

JOB, OTHER, WHEEL = "1" * 32, "2" * 32, "f" * 32
STORE = "s3://bucket/keyscale"
SPEC = JobSpec(artifact_id="program", libraries=[WHEEL, "package:requests"], parallelism=3)


def manifest_of(job: str) -> str:
    return f"{STORE}/{job}/savepoints/mine/manifest.json"


def artifact(name: str, kind: ArtifactKind, number: int) -> Any:
    of = {"id": name, "name": f"{name}-name", "version": number, "filename": f"{name}.file", "kind": kind}
    return SimpleNamespace(**of, sha256=name * 2, size_bytes=number * 10, created_at_ms=number * 100)


@pytest.fixture
def attempt(monkeypatch: pytest.MonkeyPatch) -> Attempt:
    known = {
        WHEEL: artifact(WHEEL, ArtifactKind.WHEEL, 8),
        "program": artifact("program", ArtifactKind.PYTHON, 7),
    }

    def find_all(_: Any, ids: list[str]) -> dict[str, Any]:
        assert ids == ["program", WHEEL], "a package of an index is no artifact"
        return known

    restored = {(manifest_of(OTHER), ClaimMode.CLAIM), (manifest_of(JOB), ClaimMode.NO_CLAIM)}
    newest = {(JOB, 6): 4}
    monkeypatch.setattr(recorded_definition.artifacts, "find_all", find_all)
    monkeypatch.setattr(recorded_definition.attempts, "restored_from", lambda _, job: {JOB: restored}[job])
    monkeypatch.setattr(recorded_definition.attempts, "newest_restored", lambda _, job, *, before: newest[job, before])
    return Attempt(
        job_id=JOB,
        number=6,
        stage=AttemptStage.ACTIVE,
        restore_mode=RestoreMode.REWIND,
        restore_id="r",
        restore_from=manifest_of(OTHER),
        claim_mode=ClaimMode.CLAIM,
        allow_non_restored_state=True,
    )


def record(attempt: Attempt) -> JobRecord:
    job = Job(
        id=JOB,
        name="flights",
        labels={"team": "a"},
        max_parallelism=16,
        hash_id="spark",
        created_at_ms=1,
        rewound_to="the savepoint",
    )
    revision = Revision(
        job_id=JOB,
        number=5,
        created_at_ms=2,
        created_by="ann",
        message="faster",
        artifact_id="program",
        libraries=SPEC.libraries,
        spec=SPEC.given(),
    )
    return record_of(cast("Any", None), job, revision, attempt)


def test_a_record_is_the_whole_definition_of_a_job(attempt: Attempt) -> None:
    assert record(attempt) == JobRecord(
        job_id=JobId(JOB),
        attempt=AttemptNumber(6),
        continues=AttemptNumber(4),
        name="flights",
        labels={"team": "a"},
        max_parallelism=16,
        hash_id="spark",
        created_at_ms=1,
        revision=5,
        revised_at_ms=2,
        revised_by="ann",
        message="faster",
        specification=SPEC.given(),
        artifacts=(
            RecordedArtifact(WHEEL, f"{WHEEL}-name", 8, f"{WHEEL}.file", "WHEEL", WHEEL * 2, 80, 800),
            RecordedArtifact("program", "program-name", 7, "program.file", "PYTHON", "programprogram", 70, 700),
        ),
        restore=RecordedRestore("r", "REWIND", manifest_of(OTHER), "CLAIM", allow_non_restored_state=True),
        origins=(RecordedOrigin(manifest_of(OTHER), "CLAIM"),),
        rewound_to="the savepoint",
    )


@pytest.mark.parametrize(
    ("columns", "is_recorded"),
    [
        ({"stage": AttemptStage.STANDBY}, False),
        ({"stage": AttemptStage.RESERVED}, False),
        ({"restore_mode": RestoreMode.CONTINUE}, True),
        ({"restore_mode": RestoreMode.CONTINUE, "restore_id": None}, False),
        ({"restore_mode": RestoreMode.STATELESS, "restore_id": None}, True),
    ],
)
def test_only_a_request_to_start_from_a_certain_snapshot_is_recorded(
    attempt: Attempt, columns: dict[str, Any], is_recorded: bool
) -> None:
    for name, value in columns.items():
        setattr(attempt, name, value)
    assert (record(attempt).restore is not None) is is_recorded
