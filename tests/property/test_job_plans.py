"""Applying what a plan says makes a job as declared, and then nothing is left to do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyscale.client.declarations.job_file import Content, Declaration
from keyscale.client.declarations.job_plan import NEW_FILE, Facts, JobPlan, Step, _artifact_id, plan_jobs
from keyscale.jobs.protocol.specification import JobSpec, changed

NAMES = ("arrivals", "departures", "delays")
HASHES = {f"{number:032x}": f"hash-of-{number}" for number in range(4)}
PRESENT_ARTIFACTS = list(HASHES)[:3]


@dataclass(frozen=True)
class File(Content):
    """A file whose hash is known without reading it."""

    number: int = 0

    @property
    def sha256(self) -> str:
        return f"hash-of-{self.number}"


def file_of(number: int) -> File:
    return File(Path(f"program{number}.py"), number)


texts = st.text("abc", min_size=1, max_size=2)
restarts = st.sampled_from(
    [
        None,
        {"type": "none"},
        {"type": "fixed-delay", "attempts": 2, "delay_ms": 5},
        {"type": "failure-rate", "delay_ms": 5},
    ]
)
settings = st.fixed_dictionaries(
    {},
    optional={
        "parallelism": st.integers(1, 4),
        "max_parallelism": st.sampled_from([128, 256]),
        "parameters": st.dictionaries(texts, st.one_of(texts, st.just({"secret": "DATABASE"})), max_size=2),
        "secrets": st.lists(st.sampled_from(["DATABASE", "BUCKET"]), unique=True),
        "spark_conf": st.dictionaries(texts, texts, max_size=2),
        "checkpoints": st.fixed_dictionaries({}, optional={"interval_ms": st.integers(100, 102)}),
        "restart": restarts,
        "batch_interval_ms": st.one_of(st.none(), st.integers(0, 2)),
    },
)


def given_of(values: dict[str, Any]) -> dict[str, Any]:
    """Returns settings as a file's reader gives them."""
    return JobSpec.model_validate({**values, "artifact_id": "program"}).model_dump(mode="json", include=set(values))


declarations = st.builds(
    lambda name, team, state, number, library, owned, values: Declaration(
        name,
        {"team": team},
        state,
        file_of(number),
        (file_of(library), "package:kafka") if library else (),
        frozenset({"parallelism"} if owned else ()),
        given_of(values),
        "jobs.yaml:1",
    ),
    st.sampled_from(NAMES),
    st.sampled_from("ab"),
    st.sampled_from([None, "RUNNING", "STOPPED"]),
    st.integers(0, 4),
    st.integers(0, 3),
    st.booleans(),
    settings,
)


@dataclass(frozen=True)
class Job:
    """What the plan reads of a job."""

    name: str
    labels: dict[str, str]
    spec: JobSpec
    state: str
    desired: str

    @property
    def status(self) -> SimpleNamespace:
        return SimpleNamespace(state=self.state, desired=self.desired)


def job_of(name: str, team: str, artifact: str, values: dict[str, Any], status: tuple[str, str]) -> Job:
    return Job(name, {"team": team}, JobSpec.model_validate({**values, "artifact_id": artifact}), *status)


statuses = st.sampled_from(
    [
        ("CREATED", "STOPPED"),
        ("RUNNING", "RUNNING"),
        ("RESTARTING", "RUNNING"),
        ("STOPPED", "STOPPED"),
        ("FAILED", "RUNNING"),
        ("FINISHED", "RUNNING"),
    ]
)
jobs = st.builds(
    job_of, st.sampled_from(NAMES), st.sampled_from("ab"), st.sampled_from(PRESENT_ARTIFACTS), settings, statuses
)
worlds = st.tuples(
    st.lists(declarations, unique_by=lambda each: each.name), st.lists(jobs, unique_by=lambda each: each.name)
)
selectors = st.one_of(st.none(), st.sampled_from([{"team": "a"}, {"team": "b"}]))


def plans_of(
    declared: list[Declaration], present: list[Job], prune: dict[str, str] | None, hashes: dict[str, str]
) -> list[JobPlan]:
    return plan_jobs(declared, Facts(cast("Any", present), hashes), prune=prune)


def uploaded(spec: JobSpec) -> JobSpec:
    """Returns a specification after the upload of its files."""

    def stored(artifact_id: str) -> str:
        return f"{4:032x}" if artifact_id.startswith(NEW_FILE) else artifact_id

    return spec.model_copy(
        update={"artifact_id": stored(spec.artifact_id), "libraries": [stored(each) for each in spec.libraries]}
    )


def carried_out(plan: JobPlan, present: dict[str, Job]) -> None:
    """Does to the jobs what a control plane would do."""
    for step in plan.steps:
        job = present.get(plan.name)
        if step is Step.CREATE:
            assert job is None
            assert plan.declaration is not None
            assert plan.spec is not None
            labels = dict(plan.declaration.labels)
            present[plan.name] = Job(plan.name, labels, uploaded(plan.spec), "CREATED", "STOPPED")
            continue
        assert job is not None
        if step is Step.STOP:
            present[plan.name] = replace(job, state="STOPPED", desired="STOPPED")
        elif step is Step.START:
            present[plan.name] = replace(job, state="RUNNING", desired="RUNNING")
        elif step is Step.UPDATE:
            assert plan.spec is not None
            spec = uploaded(plan.spec)
            present[plan.name] = replace(job, spec=changed(job.spec, plan.patch(spec)))
            assert present[plan.name].spec == spec, "the patch makes exactly the declared specification"
        else:
            assert job.desired == "STOPPED" or job.state in {"FAILED", "FINISHED"}, "a running job is stopped first"
            del present[plan.name]


@given(worlds, selectors)
def test_after_a_plan_nothing_is_left_to_do(
    world: tuple[list[Declaration], list[Job]], prune: dict[str, str] | None
) -> None:
    declared, before = world
    hashes = {artifact: HASHES[artifact] for artifact in HASHES}
    present = {job.name: job for job in before}
    for plan in plans_of(declared, before, prune, hashes):
        assert not (plan.refusal and plan.steps)
        carried_out(plan, present)
    hashes[f"{4:032x}"] = "hash-of-4"
    again = plans_of(declared, list(present.values()), prune, hashes)
    assert [plan for plan in again if plan.steps] == []


@given(worlds, selectors)
def test_only_a_job_that_is_selected_and_undeclared_is_deleted(
    world: tuple[list[Declaration], list[Job]], prune: dict[str, str] | None
) -> None:
    declared, before = world
    plans = plans_of(declared, before, prune, HASHES)
    deleted = {plan.name for plan in plans if Step.DELETE in plan.steps}
    names = {each.name for each in declared}
    expected = {job.name for job in before if prune and prune["team"] == job.labels["team"]} - names
    assert deleted == expected


@given(worlds)
def test_a_setting_of_the_platform_is_left_alone_once_the_job_exists(
    world: tuple[list[Declaration], list[Job]],
) -> None:
    declared, before = world
    for plan in plans_of(declared, before, None, HASHES):
        if plan.present is not None and plan.declaration is not None and plan.declaration.owned:
            assert "parallelism" not in {each.path for each in plan.differences}
        if plan.present is None and plan.spec is not None and plan.declaration is not None:
            assert plan.spec.parallelism == plan.declaration.given.get("parallelism", 1), "at creation Git decides"


@pytest.mark.parametrize(
    ("present_mode", "declared_mode", "parallelism"),
    [
        ("DISABLED", "DISABLED", 2),
        ("MONITORING", "MONITORING", 2),
        ("ACTIVE", "ACTIVE", 5),
        ("ACTIVE", "DISABLED", 2),
        ("DISABLED", "ACTIVE", 5),
        ("MONITORING", "ACTIVE", 5),
    ],
)
def test_the_declared_autoscaler_decides_who_sets_the_parallelism(
    present_mode: str, declared_mode: str, parallelism: int
) -> None:
    values = {"parallelism": 2, "autoscaler": {"mode": declared_mode}}
    declared = Declaration("delays", {"team": "a"}, None, file_of(0), (), frozenset(), given_of(values), "jobs.yaml:1")
    present = {"parallelism": 5, "autoscaler": {"mode": present_mode}}
    job = job_of("delays", "a", PRESENT_ARTIFACTS[0], present, ("RUNNING", "RUNNING"))
    [plan] = plans_of([declared], [job], None, HASHES)
    assert plan.spec is not None
    assert (plan.spec.parallelism, plan.spec.autoscaler.mode) == (parallelism, declared_mode)
    assert plan.needs_attempt == (parallelism == 2)
    [created] = plans_of([declared], [], None, HASHES)
    assert created.spec is not None
    assert (created.spec.parallelism, created.new_spec().parallelism) == (2, 2), "at creation the file decides"


@pytest.mark.parametrize(
    ("declared", "state", "desired", "steps"),
    [
        (None, "RUNNING", "RUNNING", ()),
        (None, "STOPPED", "STOPPED", ()),
        ("RUNNING", "STOPPED", "STOPPED", (Step.START,)),
        ("RUNNING", "CREATED", "STOPPED", (Step.START,)),
        ("RUNNING", "FAILED", "RUNNING", (Step.START,)),
        ("RUNNING", "SLEEPING", "RUNNING", ()),
        ("RUNNING", "STOPPING", "STOPPED", (Step.START,)),
        ("RUNNING", "FINISHED", "RUNNING", ()),
        ("STOPPED", "RUNNING", "RUNNING", (Step.STOP,)),
        ("STOPPED", "RESTARTING", "RUNNING", (Step.STOP,)),
        ("STOPPED", "STOPPING", "STOPPED", ()),
        ("STOPPED", "FAILED", "RUNNING", ()),
        ("STOPPED", "FINISHED", "RUNNING", ()),
    ],
)
def test_a_job_is_started_or_stopped_only_if_it_is_not_as_declared(
    declared: Any, state: str, desired: str, steps: tuple[Step, ...]
) -> None:
    job = job_of("delays", "a", PRESENT_ARTIFACTS[0], {}, (state, desired))
    made = Declaration("delays", {"team": "a"}, declared, file_of(0), (), frozenset(), {}, "jobs.yaml:1")
    [plan] = plans_of([made], [job], None, HASHES)
    assert plan.steps == steps
    [changed_too] = plans_of([replace(made, given=given_of({"parallelism": 3}))], [job], None, HASHES)
    assert changed_too.steps == (
        *(step for step in steps if step is Step.STOP),
        Step.UPDATE,
        *(step for step in steps if step is Step.START),
    )


@given(worlds)
def test_a_fixed_setting_is_refused_and_never_changed(world: tuple[list[Declaration], list[Job]]) -> None:
    declared, before = world
    present = {job.name: job for job in before}
    for plan in plans_of(declared, before, None, HASHES):
        job = present.get(plan.name)
        if job is None or plan.declaration is None:
            continue
        wanted = plan.declaration.given.get("max_parallelism", job.spec.max_parallelism)
        differs = wanted != job.spec.max_parallelism or dict(plan.declaration.labels) != job.labels
        assert (plan.refusal is not None) == differs


def test_a_job_keeps_its_artifact_although_another_one_has_the_same_bytes() -> None:
    content: Any = SimpleNamespace(sha256="same", path=Path("job.py"))
    hashes = {"newest": "same", "its own": "same", "other": "else"}
    assert _artifact_id(content, hashes, ["other", "its own"]) == "its own"
    assert _artifact_id(content, hashes, ["other"]) == "newest"
    assert _artifact_id(content, {}, []) == f"{NEW_FILE}job.py"
