"""A start, a rescale and a restart change the job as they say, and only a job that may be changed so."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from keyscale.api.access.principal import Principal
from keyscale.api.errors import ApiError, ApprovalRequiredError, ParallelismInvalidError, ParallelismUnchangedError
from keyscale.api.job_limits import JobLimits
from keyscale.api.lifecycle.restoring import Restore
from keyscale.api.operations import operation_requests as service
from keyscale.api.operations.schemas.operation import OperationRequest, RescaleRequest, StartRequest
from keyscale.db.models import Job, Revision
from keyscale.jobs.protocol.specification import JobSpec
from keyscale.vocabulary import Approval, JobStatus, OperationKind, RestoreMode, Role, UpgradeMode

SESSION: Any = None
USER = Principal("id", "ann", Role.OPERATOR)
RESCALE, RESTART = OperationKind.RESCALE, OperationKind.RESTART


class Platform:
    """A job of parallelism 2, and what is asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.job = Job(
            id="job", name="flights", store_url="file:///store", max_parallelism=8, status=JobStatus.RUNNING, revision=1
        )
        self.approval = Approval.NONE
        self.is_failing = self.is_known = False
        self.source: Any = None
        self.noted: list[Any] = []
        self.context: Any = SimpleNamespace(
            reads=lambda: nullcontext(SESSION),
            store=SimpleNamespace(require_usable=self.note("usable")),
            settings=SimpleNamespace(job_limits=JobLimits(parallelism_max=6)),
        )
        rows: dict[Any, dict[str, Any]] = {
            service: {
                "require_job": lambda _, name: {"flights": self.job}[name],
                "is_known": lambda *_: self.is_known,
                "find_source": lambda _, __, wanted, restorer: self.found(wanted, restorer),
                "store_restore": lambda _, job, __, source: self.noted.append(("restore", job.id, source)),
                "planned": lambda user, kind, plan: (user, kind, plan),
                "carry_out": lambda _, name, kind, __, begin: (name, kind, begin(SESSION, self.job, "o")),
            },
            service.stored_revisions: {"current": lambda *_: self.revision(1, 2)},
            service.changes: {
                "is_failing": lambda *_: self.is_failing,
                "request_change": lambda _, __, user, name, change: self.asked("requested", user, name, change),
            },
            service.plans: {"plan": lambda _, user, name, change: (user, name, change.spec)},
            service.requests: {
                "start": lambda _, job, user, name, **more: self.asked("start", job.id, user, name, more),
                "revise": self.revise,
                "select_revision": lambda _, job, to: self.noted.append(("selected", job.id, to.spec["parallelism"])),
                "require_changeable": lambda _, job, *what: self.noted.append(("changeable", job.id, *what)),
                "change": lambda _, __, user, name, change: self.asked("changed", user, name, change),
            },
        }
        for module, functions in rows.items():
            for name, function in functions.items():
                monkeypatch.setattr(module, name, function)

    def note(self, name: str) -> Any:
        return lambda *what: self.noted.append((name, *what))

    def asked(self, *what: Any) -> Any:
        self.noted.append(what)
        return "made"

    def found(self, wanted: StartRequest, restorer: Any) -> Any:
        self.noted.append(("source", wanted.restore_from, restorer.job.id))
        return self.source

    def revision(self, number: int, parallelism: int) -> Revision:
        spec = JobSpec(artifact_id="a", parallelism=parallelism, approval=self.approval)
        return Revision(job_id="job", number=number, spec=spec.given())

    def revise(self, _: Any, job: Job, spec: JobSpec, user: Principal, message: str | None = None) -> Revision:
        self.noted.append(("revised", job.id, user, message))
        return self.revision(2, spec.parallelism)

    def request(self, kind: OperationKind, wanted: OperationRequest) -> Any:
        return service.request(self.context, USER, "flights", kind, wanted)


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Platform:
    return Platform(monkeypatch)


def started(**more: bool) -> tuple[Any, ...]:
    return "start", "job", USER, "o", {"skip_lost_records": False, "reset_time": False, **more}


FIRST = [("usable", "file:///store"), ("source", None, "job")]


def test_a_start_is_the_jobs_own_and_its_store_is_asked_before(platform: Platform) -> None:
    answer = platform.request(OperationKind.START, StartRequest(skip_lost_records=True))
    assert answer == ("flights", OperationKind.START, "made")
    assert platform.noted == [*FIRST, started(skip_lost_records=True), ("restore", "job", None)]
    platform.noted.clear()
    platform.is_known = True
    platform.request(OperationKind.START, StartRequest(reset_time=True))
    assert platform.noted == [started(reset_time=True), ("restore", "job", None)], "a repetition asks no store"


@pytest.mark.parametrize(
    ("parallelism", "refusal"), [(2, None), (5, None), (9, ParallelismInvalidError), (7, ApiError)]
)
def test_a_start_at_another_parallelism_is_a_new_revision(
    platform: Platform, parallelism: int, refusal: type[ApiError] | None
) -> None:
    wanted = StartRequest(parallelism=parallelism)
    if refusal is not None:
        with pytest.raises(refusal):
            platform.request(OperationKind.START, wanted)
        assert platform.noted == FIRST
        return
    platform.request(OperationKind.START, wanted)
    changes = [] if parallelism == 2 else [("revised", "job", USER, None), ("selected", "job", parallelism)]
    assert platform.noted == [*FIRST, *changes, started(), ("restore", "job", None)]


@pytest.mark.parametrize(
    ("fields", "mode", "reason"),
    [
        ({}, None, None),
        ({"parallelism": 2}, None, None),
        ({}, RestoreMode.CONTINUE, None),
        ({}, RestoreMode.REWIND, "a start from a chosen snapshot"),
        ({"allow_non_restored_state": True}, None, "a start with allow_non_restored_state"),
        ({"skip_lost_records": True}, None, "a start with skip_lost_records"),
        ({"reset_time": True}, None, "a start with reset_time"),
        ({"parallelism": 3}, None, "a start at another parallelism"),
    ],
)
def test_a_job_whose_changes_need_an_approval_is_only_run(
    platform: Platform, fields: dict[str, Any], mode: RestoreMode | None, reason: str | None
) -> None:
    wanted = StartRequest(**fields)
    platform.source = None if mode is None else SimpleNamespace(restore=Restore("r", mode, "file:///s"))
    platform.request(OperationKind.START, wanted)
    platform.approval = Approval.REQUIRED
    platform.noted.clear()
    if reason is None:
        platform.request(OperationKind.START, wanted)
        assert platform.noted[-1] == ("restore", "job", platform.source)
    else:
        with pytest.raises(ApprovalRequiredError, match=reason):
            platform.request(OperationKind.START, wanted)
        assert "restore" not in [noted[0] for noted in platform.noted]


@pytest.mark.parametrize(
    ("status", "mode"), [(JobStatus.RUNNING, UpgradeMode.SAVEPOINT), (JobStatus.SLEEPING, UpgradeMode.LAST_STATE)]
)
def test_a_rescale_takes_a_savepoint_unless_the_job_sleeps(
    platform: Platform, status: JobStatus, mode: UpgradeMode
) -> None:
    platform.job.status = status
    assert platform.request(RESCALE, RescaleRequest(parallelism=6)) == ("flights", RESCALE, "made")
    [required, revised, requested] = platform.noted
    assert required == ("changeable", "job", RESCALE, UpgradeMode.SAVEPOINT)
    assert revised == ("revised", "job", USER, None)
    change = requested[-1]
    assert requested[:-1] == ("requested", USER, "o")
    assert (change.kind, change.mode, change.to.number, change.to.spec["parallelism"]) == (RESCALE, mode, 2, 6)
    given = (platform.context, SESSION, platform.job, USER, "o")
    service.begin_rescale(*given, 6, message="the input has grown")
    assert platform.noted[-2] == ("revised", "job", USER, "the input has grown")


@pytest.mark.parametrize(
    ("parallelism", "refusal"), [(9, ParallelismInvalidError), (7, ApiError), (2, ParallelismUnchangedError)]
)
def test_a_rescale_that_cannot_be_stores_no_revision(
    platform: Platform, parallelism: int, refusal: type[ApiError]
) -> None:
    with pytest.raises(refusal):
        platform.request(RESCALE, RescaleRequest(parallelism=parallelism))
    assert "revised" not in [noted[0] for noted in platform.noted]


def test_a_rescale_can_be_planned_without_being_begun(platform: Platform) -> None:
    answer = platform.request(RESCALE, RescaleRequest(parallelism=6, dry_run=True))
    assert answer == (USER, RESCALE, (USER, "flights", {"parallelism": 6}))
    assert platform.noted == []


@pytest.mark.parametrize("is_failing", [False, True])
def test_a_restart_keeps_the_revision_and_a_failing_job_takes_no_savepoint(
    platform: Platform, is_failing: bool
) -> None:
    platform.is_failing = is_failing
    platform.request(RESTART, OperationRequest())
    mode = UpgradeMode.LAST_STATE if is_failing else UpgradeMode.SAVEPOINT
    required, (name, *of, change) = platform.noted
    assert required == ("changeable", "job", RESTART, mode)
    assert (name, *of) == ("changed", USER, "o")
    assert change.to.number == 1
    assert (change.kind, change.mode) == (RESTART, mode)
