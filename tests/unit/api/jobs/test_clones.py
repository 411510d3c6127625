"""A clone has another job's specification, labels and state, unless its request has others."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from keyscale.api.access.principal import Principal
from keyscale.api.errors import OutOfScopeError
from keyscale.api.jobs import clones
from keyscale.api.jobs.restore_sources import FoundSource, Restorer
from keyscale.api.jobs.schemas.job import CloneRequest
from keyscale.api.lifecycle.restoring import Restore
from keyscale.db.job_scope import JobScope
from keyscale.db.models import Job, Revision
from keyscale.jobs.protocol.specification import JobSpec
from keyscale.vocabulary import Role

ANN = Principal("id", "ann", Role.OPERATOR)
SPEC = JobSpec(artifact_id="a", parallelism=2, max_parallelism=16, parameters={"p": "q"})
FOUND = FoundSource(Restore("w"), 64, "java")


class World:
    """The job `flights`, and what a clone of it asks for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[Any] = []
        self.context: Any = SimpleNamespace(
            reads=lambda: nullcontext(None),
            store=SimpleNamespace(require_usable=lambda url: self.steps.append(f"usable {url}")),
            wakeup=SimpleNamespace(ring=lambda: self.steps.append("rung")),
        )
        job = Job(id="job", name="flights", labels={"team": "a"}, store_url="file:///own")
        monkeypatch.setattr(clones, "require_job", lambda _, name: {"flights": job}[name])
        monkeypatch.setattr(clones.revisions, "current", lambda _, of: {"job": Revision(spec=SPEC.given())}[of.id])
        monkeypatch.setattr(clones, "find_source", self._find_source)
        monkeypatch.setattr(clones, "store_new", self._store_new)

    def _find_source(self, _: Any, user: Principal, request: CloneRequest, restorer: Restorer) -> FoundSource:
        assert (user, restorer) == (ANN, Restorer(None, "file:///own", None, None))
        self.source = None if request.restore_from is None else request.restore_from.model_dump(exclude_defaults=True)
        return FOUND

    def _store_new(self, _: Any, user: Principal, job: Job, spec: JobSpec, *rest: Any, **named: Any) -> Any:
        self.steps.append("stored")
        assert (user, rest[1], named["cloned"]) == (ANN, FOUND, SPEC)
        assert (job.store_url, job.max_parallelism) == ("file:///own", 64)
        return SimpleNamespace(
            name=job.name, labels=job.labels, spec=spec, message=named["message"], starts=named["starts"]
        )

    def clone(self, **request: Any) -> Any:
        return clones.clone(self.context, ANN, "flights", CloneRequest.model_validate({"name": "copy", **request}))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_clone_has_the_present_specification_and_the_key_groups_of_its_snapshot(world: World) -> None:
    made = world.clone()
    assert made.spec == SPEC.model_copy(update={"max_parallelism": 64, "hash_id": "java"})
    assert (made.name, made.labels, made.message, made.starts) == ("copy", {"team": "a"}, "cloned from flights", False)
    assert world.source == {"job": "job", "latest": True}
    assert world.steps == ["usable file:///own", "stored"]


def test_what_a_request_names_comes_before_what_the_job_has(world: World) -> None:
    made = world.clone(spec={"parallelism": 4}, labels={}, message="a test", start=True)
    assert (made.spec.parallelism, made.spec.parameters, made.labels) == (4, {"p": "q"}, {})
    assert (made.message, made.starts) == ("a test", True)
    assert world.steps == ["usable file:///own", "stored", "rung"], "the reconciler hears of it when it is stored"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"checkpoint_id": 2}, {"job": "job", "checkpoint_id": 2}),
        ({"job": "other", "savepoint_id": "s"}, {"job": "other", "savepoint_id": "s"}),
        ({"location": "file:///s"}, {"location": "file:///s"}),
    ],
)
def test_a_clone_starts_from_the_snapshot_that_its_request_names(
    world: World, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    world.clone(restore_from=given)
    assert world.source == expected


def test_a_clone_that_its_user_may_not_make_is_refused_first(world: World) -> None:
    narrow = Principal("id", "ann", Role.OPERATOR, JobScope(labels={"team": "b"}))
    request = CloneRequest.model_validate({"name": "copy"})
    with pytest.raises(OutOfScopeError):
        clones.clone(world.context, narrow, "flights", request)
    assert world.steps == []
