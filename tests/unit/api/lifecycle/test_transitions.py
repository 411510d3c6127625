from __future__ import annotations

import ast
import re

import click
import pytest

from keyscale.api.cli.root import keyscale
from keyscale.api.lifecycle.transitions import (
    TRANSITIONS,
    Action,
    TransitionError,
    enter,
    is_allowed,
    may_follow,
    what_helps,
)
from keyscale.db.models import Job
from keyscale.vocabulary import SETTLED, JobStatus, OperationKind
from tests.support.repository import ROOT

ACTIONS = (*OperationKind, *Action)


def test_every_status_can_be_reached_from_the_first_one() -> None:
    reached, pending = set(), [JobStatus.CREATED]
    while pending:
        status = pending.pop()
        if status not in reached:
            reached.add(status)
            pending += TRANSITIONS[status]
    assert reached == set(JobStatus)


def test_a_settled_job_only_starts_and_only_a_settled_job_is_deleted() -> None:
    for status in JobStatus:
        assert is_allowed(OperationKind.START, status) == is_allowed(Action.DELETE, status) == (status in SETTLED)
        assert is_allowed(OperationKind.CANCEL, status) == (status not in SETTLED)
        if status in SETTLED:
            assert TRANSITIONS[status] == {JobStatus.SUBMITTING}
        assert may_follow(status, status)


@pytest.mark.parametrize("before", JobStatus)
def test_a_job_enters_a_status_that_may_follow_and_no_other(before: JobStatus) -> None:
    for status in JobStatus:
        job = Job(name="x", status=before)
        if status is before or status in TRANSITIONS[before]:
            enter(job, status)
            assert job.status is status
        else:
            with pytest.raises(TransitionError):
                enter(job, status)
            assert job.status is before


def test_only_transitions_write_a_jobs_status() -> None:
    writers = {
        (str(path.relative_to(ROOT)), target.value.id)
        for folder in ("api", "db", "deploy")
        for path in (ROOT / folder).rglob("*.py")
        for target in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(target, ast.Attribute) and target.attr == "status" and isinstance(target.ctx, ast.Store)
        if isinstance(target.value, ast.Name)
    }
    of_other_things = {"approved", "checkpoint", "savepoint", "operation"}
    assert {writer for writer in writers if writer[1] not in of_other_things} == {
        ("api/lifecycle/transitions.py", "job")
    }


def test_a_refusal_names_a_command_that_brings_the_job_nearer_to_what_was_asked() -> None:
    commands = {
        (action, status): re.findall(r"`\./keyscale ([^`]+)`", what_helps(action, status, "visits"))
        for action in ACTIONS
        for status in JobStatus
        if not is_allowed(action, status)
    }
    assert all(commands.values())
    assert commands[OperationKind.RESCALE, JobStatus.SUBMITTING] == ["jobs wait visits"]
    assert commands[OperationKind.RESCALE, JobStatus.STOPPED] == ["jobs start visits --wait"]
    assert commands[OperationKind.START, JobStatus.STOPPING] == ["jobs wait visits --for STOPPED"]
    assert commands[OperationKind.START, JobStatus.RUNNING] == ["jobs wait visits"]
    assert commands[OperationKind.START, JobStatus.SLEEPING] == ["jobs restart visits --wait"]
    assert commands[Action.DELETE, JobStatus.RUNNING] == ["jobs stop visits", "jobs cancel visits --wait"]
    assert commands[Action.DELETE, JobStatus.SLEEPING] == ["jobs stop visits"]


def test_every_command_that_a_refusal_names_exists() -> None:
    for action in ACTIONS:
        for status in JobStatus:
            for line in re.findall(r"`\./keyscale ([^`]+)`", what_helps(action, status, "visits")):
                jobs = keyscale.commands["jobs"]
                assert isinstance(jobs, click.Group)
                _, name, *arguments = line.split()
                jobs.commands[name].make_context(name, arguments)
