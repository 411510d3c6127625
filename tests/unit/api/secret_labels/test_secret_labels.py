"""A user gives a job only the secrets that the user's scope covers."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.access.principal import Principal
from keyscale.api.errors import OutOfScopeError, SecretUnknownError
from keyscale.api.job_secrets import JobSecrets
from keyscale.api.secret_labels import secret_labels as service
from keyscale.api.secret_labels.schemas import SecretLabelsRequest
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


SECRETS = {"OURS": {"team": "a"}, "THEIRS": {"team": "b"}, "UNSET": {"team": "a"}}


@pytest.mark.parametrize(
    ("scope", "shown"),
    [
        (EVERYTHING, [("BARE", {}, True), ("OURS", {"team": "a"}, True), ("THEIRS", {"team": "b"}, True),
                      ("UNSET", {"team": "a"}, False)]),
        (OWN, [("OURS", {"team": "a"}, True), ("UNSET", {"team": "a"}, False)]),
        (OF_JOB, []),
    ],
)  # fmt: skip
def test_a_user_sees_the_names_of_the_secrets_of_the_own_scope(
    monkeypatch: pytest.MonkeyPatch, scope: JobScope, shown: list[Any]
) -> None:
    monkeypatch.setattr(service.secret_labels, "list_all", lambda _: SECRETS)
    found = service.list_all(context(), Principal("id", "ann", Role.OPERATOR, scope))
    assert [(each.name, each.labels, each.is_set) for each in found.secrets] == shown


@pytest.mark.parametrize(
    ("name", "labels", "is_set", "told"),
    [
        ("OURS", {"team": "b", "stage": "live"}, True, "gave the secret OURS stage=live, team=b"),
        ("LATER", {}, False, "gave the secret LATER no labels"),
    ],
)
def test_new_labels_replace_all_that_a_secret_had_and_are_an_event(
    monkeypatch: pytest.MonkeyPatch, name: str, labels: dict[str, str], is_set: bool, told: str
) -> None:
    noted: list[Any] = []
    monkeypatch.setattr(service.secret_labels, "replace", lambda _, *what: noted.append(what))
    monkeypatch.setattr(service.events, "record", lambda _, **event: noted.append(event))
    monkeypatch.setattr(service, "shared_now_ms", lambda: 70)
    user = Principal("id", "ann", Role.ADMIN)
    answer = service.replace(context(), user, name, SecretLabelsRequest(labels=labels))
    assert (answer.name, answer.labels, answer.is_set) == (name, labels, is_set)
    event = {"job_id": None, "at_ms": 70, "kind": "SECRET_LABELLED", "actor": "ann", "message": told}
    assert noted == [(name, labels), {**event, "secret": name, "labels": labels}]


def context() -> Any:
    secrets = JobSecrets({f"KEYSCALE_JOB_SECRET_{name}": "x" for name in ("OURS", "THEIRS", "BARE")})
    opened = SimpleNamespace(begin=lambda: nullcontext(SESSION))
    return SimpleNamespace(
        reads=lambda: nullcontext(SESSION), sessions=opened, settings=SimpleNamespace(job_secrets=secrets)
    )
