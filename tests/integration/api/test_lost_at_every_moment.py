"""A change of a job, with stand-ins for drivers: at each moment of it, each thing that can be lost is lost.

The same on real drivers: tests/e2e/test_control_plane_matrix.py, with fewer cases.
"""

from __future__ import annotations

import random
import uuid
from contextlib import closing
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale import failpoints
from keyscale.api.access.principal import Principal
from keyscale.api.job_spec import changed, spec_of
from keyscale.api.lifecycle import job_worker, requests
from keyscale.api.lifecycle.leadership import Candidacy, Leadership
from keyscale.api.lifecycle.stopwatch import Stopwatch
from keyscale.db.models import Attempt, Job, Operation
from keyscale.db.repositories import attempts, jobs, revisions
from keyscale.vocabulary import AttemptStage, OperationKind, OperationStatus, Role, UpgradeMode
from tests.support.control_plane.rehearsed_drivers import Committed, RehearsedLauncher, World
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import httpx
    from sqlalchemy.orm import Session

    from keyscale.api.control_plane.context import Context

pytestmark = pytest.mark.real

USER = Principal("test", "test", Role.ADMIN)
TURNS_MAX = 400
LIVE_RESCALE, RETURNING_RESCALE = "live rescale", "live rescale with a first batch that fails"
RESCALE, UPGRADE, FAILING_UPGRADE, FROM_LAST_STATE = "rescale", "upgrade", "failing upgrade", "upgrade from last state"
HERE, ELSEWHERE = "here", "elsewhere"


class ControlPlaneDiedError(Exception):
    """The control plane was killed in the middle of a step."""


class Rehearsal:
    """A job that is changed, and what is lost at some moments of it.

    Args:
        losses: What is lost, by the number of the moment, counted from the request: `control plane`, `old driver`,
            `new driver`.
        successor: The host of the next control plane, if that is lost.
        cancelled_at: The driver's action at which the user cancels the change.
    """

    def __init__(
        self,
        context: Context,
        monkeypatch: pytest.MonkeyPatch,
        job: dict[str, Any],
        *,
        losses: Mapping[int, frozenset[str]] | None = None,
        successor: str = HERE,
        cancelled_at: str = "",
    ) -> None:
        self.context, self.job_id = context, str(job["id"])
        self._losses, self._successor = losses or {}, successor
        self._cancelled_at = cancelled_at
        self.moments: list[str] | None = None
        self._seconds = 0.0
        self._place = HERE
        self.old = 0
        self.world = World(context, self.job_id, job["status"]["store_url"], self._reach)
        monkeypatch.setattr(failpoints, "failpoint", self._reach)
        monkeypatch.setattr(job_worker, "Stopwatch", lambda: Stopwatch(lambda: self._seconds, lambda: 1.0))
        for module in ("apply", "fact_reader"):  # pauses between starts pass as quickly
            monkeypatch.setattr(f"keyscale.api.lifecycle.{module}.now_ms", lambda: int(self._seconds * 1000))
        self._candidacy: Candidacy | None = None
        self._worker: job_worker.JobWorker | None = None

    def close(self) -> None:
        """The control plane is gone; what it knew beside the database is lost."""
        if self._candidacy is not None:
            self._candidacy.close()
        self._candidacy = self._worker = None

    def turn(self) -> None:
        """Lets a second pass: each driver takes an action, and the control plane the job's steps."""
        self._seconds += 1.0
        try:
            self.world.turn()
            if self._worker is None:
                self._begin()
            assert self._worker is not None
            self._worker.advance(self.job_id)
        except ControlPlaneDiedError:
            return

    def _begin(self) -> None:
        self._candidacy = Candidacy(self.context.engine, "")
        epoch = wait_until(self._candidacy.stand, what="the election")
        self._worker = job_worker.JobWorker(
            leadership=Leadership(self.context.sessions, epoch),
            launcher=cast("Any", RehearsedLauncher(self.world, self._place)),
            store=cast("Any", self.world),
        )

    def _reach(self, moment: str) -> None:
        if self.moments is None:
            return
        self.moments.append(moment)
        lost = self._losses.get(len(self.moments) - 1, frozenset())
        new = max(self.world.drivers)
        if "old driver" in lost:
            self.world.drivers[self.old].kill()
        if "new driver" in lost and new != self.old:
            self.world.drivers[new].kill()
        if self._cancelled_at and moment.endswith(self._cancelled_at):
            self._cancel()
        if "control plane" in lost:
            self._place = self._successor
            self.close()
            if not moment.startswith("driver"):
                raise ControlPlaneDiedError

    def _cancel(self) -> None:
        with self.context.sessions.begin() as session:
            requests.cancel_operation(session, session.get_one(Operation, self.change_id), USER)

    def until(self, what: str, observe: Callable[[], bool]) -> None:
        for _ in range(TURNS_MAX):
            if observe():
                return
            self.turn()
        message = f"{what} did not come; moments: {self.moments}; log: {self.world.log}"
        raise AssertionError(message)

    def start(self) -> None:
        with self.context.sessions.begin() as session:
            requests.start(session, self._locked(session), USER, f"start-of-{self.job_id}")
        self.until("a running job", lambda: self.status() == "RUNNING" and self.has_committed())
        [self.old] = self.world.alive()

    def request(self, kind: str) -> None:
        """Asks for a change, as a request does after its checks, and from now on counts moments."""
        mode = UpgradeMode.LAST_STATE if kind == FROM_LAST_STATE else UpgradeMode.SAVEPOINT
        is_rescale = kind in {RESCALE, LIVE_RESCALE, RETURNING_RESCALE}
        change_kind = OperationKind.RESCALE if is_rescale else OperationKind.UPGRADE
        other: dict[str, Any] = {"parallelism": 4} if is_rescale else {"parameters": {"version": "2"}}
        if kind == RESCALE:
            other["rescale_mode"] = "STANDBY"
        with self.context.sessions.begin() as session:
            job = self._locked(session)
            requests.require_changeable(session, job, change_kind, mode)
            present = spec_of(revisions.current(session, job))
            revision = requests.revise(session, job, changed(present, other), USER)
            requests.change(session, job, USER, self.change_id, requests.Change(change_kind, revision, mode))
            if kind in {FAILING_UPGRADE, RETURNING_RESCALE}:
                self.world.raising.add(revision.number)
        self.moments = []

    def end(self) -> None:
        self.until("the end of the change", lambda: self.change().status is not OperationStatus.IN_PROGRESS)
        self.until("a running job", lambda: self.status() == "RUNNING" and self.has_committed())
        self.until("the end of all other attempts and troubles", self._is_tidy)

    @property
    def change_id(self) -> str:
        return f"change-of-{self.job_id}"

    def change(self) -> Operation:
        with self.context.sessions() as session:
            return session.get_one(Operation, self.change_id)

    def status(self) -> str:
        with self.context.sessions() as session:
            return str(session.get_one(Job, self.job_id).status)

    def has_committed(self) -> bool:
        """Whether the active attempt is the last one that committed, and lives."""
        active = self._of_stage(AttemptStage.ACTIVE)
        last = self.world.log[-1] if self.world.log else None
        return active is not None and last == Committed(active.number, active.revision)

    def _is_tidy(self) -> bool:
        with self.context.sessions() as session:
            is_well = session.get_one(Job, self.job_id).failure is None
            return is_well and len(self.world.alive()) == 1 and not attempts.unreaped(session, self.job_id)

    def _of_stage(self, stage: AttemptStage) -> Attempt | None:
        with self.context.sessions() as session:
            return attempts.of_stage(session, self.job_id, stage)

    def _locked(self, session: Session) -> Job:
        job = jobs.lock(session, self.job_id)
        assert job is not None
        return job

    def check(self, kind: str) -> None:
        """The job runs the old or the new revision, as the change says, and only one attempt ran it at a time."""
        change, active = self.change(), self._of_stage(AttemptStage.ACTIVE)
        assert active is not None
        assert self.world.alive() == [active.number]
        assert self._of_stage(AttemptStage.RESERVED) is None
        assert self._of_stage(AttemptStage.STANDBY) is None
        if kind in {FAILING_UPGRADE, RETURNING_RESCALE}:
            expected = {OperationStatus.ROLLED_BACK}
        elif kind in {FROM_LAST_STATE, LIVE_RESCALE}:
            expected = {OperationStatus.COMPLETED, OperationStatus.ROLLED_BACK, OperationStatus.CANCELLED}
        else:
            is_published = self.change_id in self.world.savepoints
            expected = {OperationStatus.COMPLETED if is_published else OperationStatus.ROLLED_BACK}
        assert change.status in expected, change.failure
        number = change.to_revision if change.status is OperationStatus.COMPLETED else change.from_revision
        with self.context.sessions() as session:
            job = session.get_one(Job, self.job_id)
        assert (job.revision, active.revision, job.failure) == (number, number, None)
        attempts_of_entries = [entry.attempt for entry in self.world.log]
        assert attempts_of_entries == sorted(attempts_of_entries)
        ran = [entry.revision for entry in self.world.log if isinstance(entry, Committed)]
        hands = [ran[0], *(new for old, new in pairwise(ran) if old != new)]
        expected_hands = [sorted({change.from_revision, number})]
        if change.status is OperationStatus.CANCELLED:  # the new revision may have committed batches meanwhile
            expected_hands.append([change.from_revision, change.to_revision, change.from_revision])
        assert hands in expected_hands


LOSSES = [
    *(
        (frozenset(lost), HERE)
        for size in (1, 2, 3)
        for lost in combinations(("control plane", "old driver", "new driver"), size)
    ),
    (frozenset({"control plane"}), ELSEWHERE),
]


@pytest.fixture
def rehearse(
    context: Context, client: httpx.Client, upload: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Rehearsal]:
    """Performs a change of a new job, and checks its end."""
    artifact = upload().json()["id"]

    def perform(kind: str, **losses: Any) -> Rehearsal:
        body = {
            "name": f"job-{uuid.uuid4().hex}",
            "spec": {"artifact_id": artifact, "parallelism": 2, "max_parallelism": 16},
        }
        with closing(Rehearsal(context, monkeypatch, client.post("/v1/jobs", json=body).json(), **losses)) as rehearsal:
            rehearsal.start()
            rehearsal.request(kind)
            rehearsal.end()
            rehearsal.check(kind)
        return rehearsal

    return perform


def cases() -> Iterator[Any]:
    """Some moments of an upgrade are in the default tier, and more of all changes; the simulator plays every one."""
    for kind in (UPGRADE, LIVE_RESCALE, RETURNING_RESCALE, RESCALE, FAILING_UPGRADE, FROM_LAST_STATE):
        for lost, successor in LOSSES:
            name = f"{kind}, {' and '.join(sorted(lost))}, {successor}"
            if kind == UPGRADE and successor == HERE and len(lost) == 1:
                yield pytest.param(kind, lost, successor, 13, id=f"{name}, some moments")
            yield pytest.param(kind, lost, successor, 7, id=name, marks=pytest.mark.exhaustive)


@pytest.mark.parametrize(("kind", "lost", "successor", "stride"), list(cases()))
def test_one_revision_runs_in_the_end_whatever_is_lost_at_whichever_moment(
    rehearse: Callable[..., Rehearsal], kind: str, lost: frozenset[str], successor: str, stride: int
) -> None:
    moments = rehearse(kind).moments
    assert moments is not None
    for at in range(stride // 2, len(moments), stride):
        try:
            rehearse(kind, losses={at: lost}, successor=successor)
        except Exception as error:
            error.add_note(f"at moment {at}, {moments[at]}")
            raise


def test_a_live_rescale_keeps_its_driver(rehearse: Callable[..., Rehearsal]) -> None:
    rehearsal = rehearse(LIVE_RESCALE)
    change = rehearsal.change()
    assert [phase["phase"] for phase in change.phases] == ["PREPARE", "SWITCH", "VERIFY"]
    assert (change.status, change.not_live, list(rehearsal.world.drivers)) == ("COMPLETED", None, [rehearsal.old])


def test_a_live_rescale_whose_first_batch_fails_goes_back_with_its_driver(rehearse: Callable[..., Rehearsal]) -> None:
    rehearsal = rehearse(RETURNING_RESCALE)
    change = rehearsal.change()
    assert [phase["phase"] for phase in change.phases] == ["PREPARE", "SWITCH", "VERIFY", "ROLL_BACK"]
    assert (change.failure or {})["code"] == "JOB_FUNCTION_FAILED"
    assert list(rehearsal.world.drivers) == [rehearsal.old]


def test_a_live_rescale_that_is_cancelled_before_the_switch_changes_nothing(
    rehearse: Callable[..., Rehearsal],
) -> None:
    rehearsal = rehearse(LIVE_RESCALE, cancelled_at="preparing")
    assert rehearsal.change().status is OperationStatus.CANCELLED
    assert list(rehearsal.world.drivers) == [rehearsal.old]
    assert {entry.attempt for entry in rehearsal.world.log} == {1}


@pytest.mark.exhaustive
def test_a_live_rescale_that_is_cancelled_after_the_switch_goes_back_with_a_new_driver(
    rehearse: Callable[..., Rehearsal],
) -> None:
    rehearsal = rehearse(LIVE_RESCALE, cancelled_at="switched")
    change = rehearsal.change()
    assert [phase["phase"] for phase in change.phases] == ["PREPARE", "SWITCH", "VERIFY", "ROLL_BACK"]
    assert change.status is OperationStatus.CANCELLED
    assert len(rehearsal.world.drivers) == 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3))
def test_one_revision_runs_in_the_end_when_things_are_lost_at_two_moments(
    rehearse: Callable[..., Rehearsal], seed: int
) -> None:
    chance = random.Random(seed)
    for _ in range(10):
        kind = chance.choice([LIVE_RESCALE, RETURNING_RESCALE, RESCALE, UPGRADE, FAILING_UPGRADE, FROM_LAST_STATE])
        losses = {at: chance.choice(LOSSES)[0] for at in sorted(chance.sample(range(50), 2))}
        successor = chance.choice([HERE, ELSEWHERE])
        try:
            rehearse(kind, losses=losses, successor=successor)
        except Exception as error:
            error.add_note(f"{kind}, {losses}, {successor}")
            raise
