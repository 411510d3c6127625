"""A user gives a job only the secrets that the user's scope covers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.access.principal import Principal
from keyscale.api.errors import OutOfScopeError, SecretUnknownError
from keyscale.api.secret_labels import secret_labels as service
from keyscale.api.secret_labels.secret_labels import require_covered
from keyscale.db.job_scope import EVERYTHING, JobScope
from keyscale.jobs.protocol.specification import JobSpec
from keyscale.vocabulary import Role

if TYPE_CHECKING:
    from collections.abc import Collection

SESSION: Any = None
OWN = JobScope(labels={"team": "a"})
OF_JOB = JobScope(jobs=frozenset({"flights"}))


@pytest.fixture(autouse=True)
def _labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """OURS has the label of team a, THEIRS of team b, and BARE has none."""
    known = {"OURS": {"team": "a"}, "THEIRS": {"team": "b"}}

    def find(_: Any, names: Collection[str]) -> dict[str, dict[str, str]]:
        return {name: known[name] for name in names if name in known}

    monkeypatch.setattr(service.secret_labels, "find", find)


def specification(secrets: list[str] | None, **fields: Any) -> JobSpec:
    return JobSpec.model_validate({"artifact_id": "program", "parallelism": 2, "secrets": secrets, **fields})


@pytest.mark.parametrize(
    ("scope", "before", "after", "error"),
    [
        (EVERYTHING, None, None, None),
        (EVERYTHING, None, ["THEIRS"], None),
        (OWN, None, ["OURS"], None),
        (OWN, None, [], None),
        (OWN, None, ["OURS", "THEIRS"], SecretUnknownError),
        (OWN, None, ["BARE"], SecretUnknownError),
        (OF_JOB, None, ["OURS"], SecretUnknownError),
        (OWN, ["THEIRS"], ["OURS", "THEIRS"], None),
        (OWN, ["THEIRS"], ["BARE"], SecretUnknownError),
        (OWN, None, None, OutOfScopeError),
        (OWN, ["OURS"], None, OutOfScopeError),
    ],
)
def test_new_secrets_are_in_the_scope_and_a_job_keeps_those_that_it_has(
    scope: JobScope, before: list[str] | None, after: list[str] | None, error: type[Exception] | None
) -> None:
    user = Principal("id", "ann", Role.OPERATOR, scope)
    known = None if before is None else specification(before)
    if error is None:
        require_covered(SESSION, user, known, specification(after))
    else:
        with pytest.raises(error):
            require_covered(SESSION, user, known, specification(after))


@pytest.mark.parametrize(
    ("change", "is_taken"),
    [
        ({"parallelism": 4}, True),
        ({"batch_interval_ms": 5}, True),
        ({"artifact_id": "other"}, False),
        ({"libraries": ["package:other"]}, False),
        ({"parameters": {"output": "/mine"}}, False),
        ({"spark_conf": {"spark.driver.memory": "1g"}}, False),
        ({"secrets": ["THEIRS"]}, False),
    ],
)
def test_a_job_that_gets_all_secrets_keeps_its_program(change: dict[str, Any], is_taken: bool) -> None:
    user = Principal("id", "ann", Role.OPERATOR, OWN)
    before = specification(None)
    after = JobSpec.model_validate({**before.given(), **change})
    if is_taken:
        require_covered(SESSION, user, before, after)
    else:
        with pytest.raises((OutOfScopeError, SecretUnknownError)):
            require_covered(SESSION, user, before, after)
