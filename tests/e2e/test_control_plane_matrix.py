"""Real control planes and real drivers die at moments of each operation: the operation ends, and the job is exact.

The simulator kills at every durable step of every operation; here each operation and each kind of loss appears, on real
processes.

A named sync point holds a process at one moment of one step; there the leader is killed, stopped by a signal or cut off
from the database, or a driver is killed. Cases with as many control planes share them and one job, which goes from one
operation to the next, until a case fails. While an operation goes on, input comes in. After each, every row of the
output is compared; the old or the new revision wrote it, never both and never none; the commit log shows that no
attempt did anything after a newer one had begun; and no process of another attempt than the active one is left.
"""

from __future__ import annotations

import random
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.control_plane.control_planes import Loss, control_planes
from tests.support.control_plane.counts_job import RAISES, CountsJob
from tests.support.control_plane.single_run import check_commits, driver_processes, kill_driver
from tests.support.named_moments import NamedMoments
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.support.control_plane.control_planes import ControlPlanes

pytestmark = [pytest.mark.real, pytest.mark.exhaustive, pytest.mark.timeout(1200)]

START, RESCALE, LIVE_RESCALE, STOP = "start", "rescale", "live rescale", "stop"
UPGRADE, FAILING_UPGRADE = "upgrade", "failing upgrade"
OPERATION_S = 300.0
INPUT_EVERY_S = 2.0
LOSS_WITHIN_S = 12.0
CASES_MAX = 20  # then the job's output has become long, and another one begins

CREATE = ("CreateAttempt.decided", "CreateAttempt.taken", "Launch.decided", "Launch.taken")
SWITCH = (
    "BeginSavepoint.decided",
    "BeginSavepoint.taken",
    "AdvanceChange.STOP.decided",
    "AdvanceChange.STOP.taken",
    "SwitchOver.decided",
    "SwitchOver.taken",
    "AdvanceChange.VERIFY.decided",
    "AdvanceChange.VERIFY.taken",
    "CompleteChange.decided",
    "CompleteChange.taken",
)
LIVE_SWITCH = (
    "ReserveAttempts.decided",
    "ReserveAttempts.taken",
    "SendRescale.decided",
    "SendRescale.taken",
    "FollowSwitch.decided",
    "FollowSwitch.taken",
    *SWITCH[-2:],
)
BACK = ("RollBack.decided", "RollBack.taken", "Launch.decided", "Launch.taken", *SWITCH[-2:])
SETTLE = ("SettleJob.decided", "SettleJob.taken")
REAP = ("MarkReaped.decided", "MarkReaped.taken")
RECORDED = ("Launch.recorded",)  # between the record of a launch and the launch

COMPLETED, ROLLED_BACK = "COMPLETED", "ROLLED_BACK"
# The moments at which the old driver or the new one is killed, and how the change must then end.
OLD_DRIVER = {
    "BeginSavepoint.decided": ROLLED_BACK,
    "checkpoint.uploaded": ROLLED_BACK,
    "checkpoint.published": COMPLETED,  # the savepoint is there, although nobody has reported it
}
NEW_DRIVER = {
    "Launch.taken": ROLLED_BACK,
    "BeginSavepoint.taken": COMPLETED,
    "SwitchOver.taken": COMPLETED,
    "run.fenced": COMPLETED,
    "batch.planned": COMPLETED,
    "CompleteChange.decided": COMPLETED,
}
# The moments at which the driver of a live rescale is killed, and how the change must then end; None: either way, as
# the driver may have spoken for its next attempt.
LIVE_DRIVER: dict[str, str | None] = {
    "SendRescale.taken": ROLLED_BACK,
    "rescale.prepared": ROLLED_BACK,
    "rescale.held": ROLLED_BACK,
    "rescale.opened": None,
    "FollowSwitch.taken": COMPLETED,
    "CompleteChange.decided": COMPLETED,
}
AND_LEADER = ("SwitchOver.taken", "CompleteChange.decided")


@dataclass(frozen=True, slots=True)
class Case:
    """An operation, and what is lost at some of its moments.

    Attributes:
        operation: What the job does.
        moments: At each of them, one after the other, something is lost.
        members: How many control planes there are.
        leader: How the leader is lost, if it is.
        driver: The driver that is killed, if one is: `old`, `new`, or `running` in a live rescale.
        end: The end that a change must have; None: either.
        after: A moment before the first one: a driver that is held at a moment cannot have been there before.
    """

    operation: str
    moments: tuple[str, ...]
    members: int = 1
    leader: Loss | None = None
    driver: str = ""
    end: str | None = COMPLETED
    after: str = ""

    @property
    def stage(self) -> tuple[int, str]:
        """The number of control planes, and the job's way to rescale."""
        return self.members, "LIVE" if self.operation == LIVE_RESCALE else "STANDBY"

    def __str__(self) -> str:
        lost = [self.driver and f"{self.driver} driver", self.leader and f"leader of {self.members} {self.leader}"]
        times = f" and {len(self.moments) - 1} more" if len(self.moments) > 1 else ""
        return f"{self.operation}, {self.moments[0]}{times}, {' and '.join(filter(None, lost))}"


def leader_cases() -> Iterator[Case]:
    """The leader is lost at one moment after the other: each operation once, and a rescale in each way."""
    for members, loss in ((1, Loss.KILLED), *((2, loss) for loss in Loss)):
        yield Case(RESCALE, CREATE + SWITCH, members, loss)
        yield Case(LIVE_RESCALE, LIVE_SWITCH, members, loss)
    # A leader does not see the processes on another one's host. It waits some time for a driver that was never
    # started, and then gives the change up.
    yield Case(RESCALE, RECORDED, 1, Loss.KILLED)
    yield Case(RESCALE, RECORDED, 2, Loss.KILLED, end=None)
    yield Case(START, CREATE, 2, Loss.STOPPED, end=None)
    yield Case(START, RECORDED, 1, Loss.KILLED, end=None)
    yield Case(RESCALE, REAP, 2, Loss.CUT_OFF)
    yield Case(UPGRADE, CREATE + SWITCH, 1, Loss.KILLED)
    yield Case(FAILING_UPGRADE, BACK, 2, Loss.STOPPED, end=ROLLED_BACK)
    yield Case(FAILING_UPGRADE, ("Launch.recorded@2",), 2, Loss.CUT_OFF, end=ROLLED_BACK)
    yield Case(STOP, SETTLE, 2, Loss.KILLED, end=None)


def driver_cases() -> Iterator[Case]:
    """A driver is killed, alone or together with the leader."""
    ends: dict[str, str | None] = {**OLD_DRIVER, **NEW_DRIVER, **LIVE_DRIVER}
    for operation, leader, driver, moments in (
        (RESCALE, None, "old", OLD_DRIVER),
        (LIVE_RESCALE, None, "running", LIVE_DRIVER),
        (UPGRADE, None, "new", NEW_DRIVER),
        (UPGRADE, Loss.KILLED, "new", AND_LEADER),
    ):
        for moment in moments:
            end = ends[moment]
            after = "SwitchOver.decided" if moment.startswith(("run.", "batch.")) else ""
            yield Case(operation, (moment,), leader=leader, driver=driver, end=end, after=after)


def parameters(cases: Iterable[Case]) -> list[Any]:
    """Cases that share a stage follow each other."""
    ordered = sorted(cases, key=lambda case: case.stage)
    return [pytest.param(case, id=str(case)) for case in ordered]


class Stage:
    """Some control planes and a job with a way to rescale, for one case after the other."""

    def __init__(self, members: int, mode: str, directory: Path, exits: ExitStack) -> None:
        self.of = members, mode
        self.moments = NamedMoments(directory / "moments")
        self.planes: ControlPlanes = exits.enter_context(control_planes(members, self.moments.settings))
        self.job = CountsJob(lambda: self.planes.api, directory / "job")
        self._versions = count(RAISES + 1)
        self._delivered_at_s = 0.0
        # Savepoints only: a moment of a checkpoint is then one of an operation's.
        self.job.create(
            1, parallelism=1, max_parallelism=16, rescale_mode=mode, checkpoints={"interval_ms": 86_400_000}
        )

    def status(self) -> str:
        return str(self.job.show()["status"]["state"])

    def wait(self, what: str, observe: Callable[[], Any]) -> Any:
        """Waits while input comes in, and says what the job was doing if it waited without success."""

        def look() -> Any:
            if time.monotonic() - self._delivered_at_s > INPUT_EVERY_S:
                self.job.deliver()
                self._delivered_at_s = time.monotonic()
            attempts = self.job.attempts()
            assert sum(attempt["stage"] == "ACTIVE" for attempt in attempts) <= 1
            return observe()

        try:
            return wait_until(look, OPERATION_S, what=what, poll=0.2)
        except AssertionError as error:
            shown = self.job.show()
            error.add_note(
                f"the job is {shown['status']['state']}: {shown['status']['failure']}; attempts: {self.job.attempts()}"
            )
            raise

    def prepare(self, operation: str) -> None:
        """Lets the job run, or stop before it is started."""
        if operation == START:
            if self.status() == "RUNNING":
                self.ask(STOP)
            self.wait("the job to stop", lambda: self.status() in {"STOPPED", "CREATED"})
        else:
            if self.status() in {"STOPPED", "CREATED"}:
                self.ask(START)
            self.wait("the job to run", lambda: self.status() == "RUNNING")
            self.check()

    def ask(self, operation: str) -> str:
        """Asks for an operation; returns a change's id."""
        match operation:
            case "rescale" | "live rescale":
                return self.job.rescale(3 - int(self.job.show()["spec"]["parallelism"]))
            case "upgrade":
                return self.job.update(next(self._versions))
            case "failing upgrade":
                return self.job.update(RAISES)
            case _:
                self.job.act(operation, {} if operation == STOP else None)
                return ""

    def has_ended(self, operation: str, change_id: str) -> bool:
        if change_id:
            return bool(self.job.show_change(change_id)["status"] != "IN_PROGRESS" and self.status() == "RUNNING")
        return self.status() == {START: "RUNNING", STOP: "STOPPED"}[operation]

    def check(self) -> None:
        """The running job has written all that it should, once, and only its active attempt is left."""
        self.job.deliver()
        self.job.wait_for_all()
        check_commits(self.planes.store_url, self.job.id)
        active = self.job.show()["status"]["attempt"]
        wait_until(
            lambda: self.runs() == {self.run_of(active)}, 90, what=f"the end of all attempts but {active['number']}"
        )

    def runs(self) -> set[int]:
        """The attempts for which the present drivers were started."""
        return set(driver_processes(self.job.id))

    def run_of(self, attempt: Any) -> int:
        """The attempt for which an attempt's driver was started: a live rescale keeps its driver."""
        found = driver_processes(self.job.id).items()
        return next((run for run, processes in found if attempt["pid"] in {each.pid for each in processes}), 0)

    def check_versions(self, revision_before: int, files_before: int) -> None:
        """The rows since the operation began are of the old or the new revision, with one change of hands at most."""
        shown = self.job.show()
        versions = {row["count"]: row["version"] for row in self.job.rows() if row["count"] > files_before}
        assert RAISES not in versions.values()
        hands = [version for number, version in sorted(versions.items()) if version != versions.get(number - 1)]
        is_new = shown["revision"] != revision_before
        assert len(hands) <= 1 + is_new, f"versions took turns: {hands}"


class Stages:
    """One stage at a time. The next case goes on with it, unless it failed or the case needs another one."""

    def __init__(self) -> None:
        self._stage: Stage | None = None
        self._exits = ExitStack()
        self._cases = 0

    @contextmanager
    def of(self, members: int, mode: str) -> Iterator[Stage]:
        if self._stage is None or self._stage.of != (members, mode) or self._cases >= CASES_MAX:
            self.close()
            directory = Path(self._exits.enter_context(tempfile.TemporaryDirectory(prefix="keyscale-stage-")))
            self._stage = Stage(members, mode, directory, self._exits)
        self._cases += 1
        try:
            yield self._stage
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._stage, self._cases = None, 0
        self._exits.close()


@pytest.fixture(scope="module")
def stages() -> Iterator[Stages]:
    opened = Stages()
    yield opened
    opened.close()


@pytest.mark.parametrize("case", parameters(leader_cases()))
def test_an_operation_ends_and_the_job_is_exact_whenever_the_leader_is_lost(stages: Stages, case: Case) -> None:
    with stages.of(*case.stage) as stage:
        perform(stage, case)


@pytest.mark.parametrize("case", parameters(driver_cases()))
def test_a_change_ends_with_the_old_or_the_new_revision_whenever_a_driver_is_killed(stages: Stages, case: Case) -> None:
    with stages.of(*case.stage) as stage:
        perform(stage, case)


@pytest.mark.parametrize(("members", "seed"), [(1, 0), (2, 1)])
def test_an_operation_ends_and_the_job_is_exact_when_leaders_are_lost_at_random(
    stages: Stages, members: int, seed: int
) -> None:
    chance = random.Random(seed)
    with stages.of(members, "STANDBY") as stage:
        operation = chance.choice([RESCALE, UPGRADE, FAILING_UPGRADE])
        stage.prepare(operation)
        before, files_before = stage.job.show(), stage.job.files
        change_id = stage.ask(operation)
        for _ in range(3):
            until_s = time.monotonic() + chance.uniform(0, LOSS_WITHIN_S)
            stage.wait("a moment that nobody knows", lambda until_s=until_s: time.monotonic() > until_s)
            stage.planes.lose_leader(Loss.KILLED if members == 1 else chance.choice(list(Loss)))
            stage.planes.bring_back()
        stage.wait(f"the end of the {operation}", lambda: stage.has_ended(operation, change_id))
        stage.check()
        check_change(stage, operation, change_id, before, None)
        stage.check_versions(int(before["revision"]), files_before)


def perform(stage: Stage, case: Case) -> None:
    stage.prepare(case.operation)
    before = stage.job.show()
    rows_before, files_before = len(stage.job.rows()), stage.job.files
    moments = list(case.moments)
    held_at = stage.moments.hold_at(case.after or moments.pop(0))
    change_id = stage.ask(case.operation)
    if case.after:
        stage.wait(case.after, held_at.held)
        passed, held_at = held_at, stage.moments.hold_at(moments.pop(0))
        passed.release()
    while True:
        stage.wait(f"{held_at.step}", held_at.held)
        if case.driver:
            old = stage.run_of(before["status"]["attempt"])
            new = max(int(attempt["number"]) for attempt in stage.job.attempts())
            assert new > old or case.driver != "new", "there is no new driver yet"
            kill_driver(stage.job.id, new if case.driver == "new" else old)
        passed = held_at
        if moments:
            held_at = stage.moments.hold_at(moments.pop(0))
        else:
            stage.moments.hold_nobody()
        if case.leader:
            stage.planes.lose_leader(case.leader)
        passed.release()  # what was held goes on in the middle of its step, if it still can
        stage.planes.bring_back()
        if passed is held_at:
            break
    stage.wait(f"the end of the {case.operation}", lambda: stage.has_ended(case.operation, change_id))
    if case.operation == STOP:
        wait_until(lambda: not driver_processes(stage.job.id), 90, what="the end of all attempts")
        return
    stage.check()
    if change_id:
        check_change(stage, case.operation, change_id, before, case.end)
        stage.check_versions(int(before["revision"]), files_before)
    assert len(stage.job.rows()) > rows_before


def check_change(stage: Stage, operation: str, change_id: str, before: Any, end: str | None) -> None:
    """The change has the end that it must have, and the job has the revision of it."""
    change, after = stage.job.show_change(change_id), stage.job.show()
    assert change["status"] in ({end} if end else {COMPLETED, ROLLED_BACK}), change["failure"]
    is_new = change["status"] == COMPLETED
    assert after["revision"] == (change["to_revision"] if is_new else before["revision"])
    present = before["spec"]["parallelism"]
    other = 3 - present if operation in {RESCALE, LIVE_RESCALE} and is_new else present
    if operation == LIVE_RESCALE and is_new:
        assert change["rescale_mode"] == "LIVE", change["not_live"]
    assert after["spec"]["parallelism"] == after["status"]["attempt"]["parallelism"] == other
    assert after["status"]["attempt"]["revision"] == after["revision"]
