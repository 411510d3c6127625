"""A verification ends with its findings about files, sources, claims and the job that would start from it."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from keyscale.api.errors import TooManyInFlightError
from keyscale.api.maintenance import verifier as service
from keyscale.api.maintenance.verifier import AT_ONCE, BEAT_S, Verifier
from keyscale.db.models import Attempt, Checkpoint, Job
from keyscale.state.inspection.verification import Verification
from keyscale.state.objects.errors import StoreUnavailableError
from keyscale.vocabulary import AttemptStage, CommandStatus

NOW_MS = 1_000_000
JOB = Job(id="job", name="flights", store_url="file:///store")
FOUND = Checkpoint(job_id="job", checkpoint_id=7, external_path="file:///store/job/chk-7/manifest.json")
BEGUN = {"status": CommandStatus.IN_PROGRESS, "hashes": True, "started_at_ms": 5, "beat_at_ms": 6}
MANIFEST: Any = "the manifest"
DAMAGED = "its files are damaged or missing"


class Verified:
    """One verification: what its parts find, and what it stores."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.result: Verification | Exception = Verification(3, 2, 100, manifest=MANIFEST)
        self.claimant: str | None = None
        self.no_start: str | None = None
        self.unchecked: str | None = None
        self.attempt: Attempt | None = None
        self.steps_s: list[float] = []
        self.clock_s = 0.0
        self.goes_on: list[bool] = []
        self.asked: list[Any] = []
        self.noted: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        monkeypatch.setattr(service, "now_ms", lambda: NOW_MS)
        monkeypatch.setattr(service, "shared_now_ms", lambda: NOW_MS + 1)
        monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: self.clock_s))
        monkeypatch.setattr(service, "open_to_read", lambda url: f"the store {url}")
        monkeypatch.setattr(service, "verify", self._verify)
        monkeypatch.setattr(service, "claimant_of", lambda *of: self.asked.append(of) or self.claimant)
        monkeypatch.setattr(service, "_look_at_sources", self._look_at_sources)
        of_stage = {("job", AttemptStage.ACTIVE): lambda: self.attempt}
        monkeypatch.setattr(service.attempts, "of_stage", lambda _, *of: of_stage[of]())
        monkeypatch.setattr(service.checkpoints, "note_verification", self._note)
        monkeypatch.setattr(service.events, "record", lambda _, **event: self.events.append(event))
        sessions: Any = Sessions()
        self.verifier = Verifier(sessions, lambda *of: self.no_start if of == (MANIFEST, JOB) else "another job")

    def _verify(self, store: str, path: str, *, hashes: bool, goes_on: Any) -> Verification:
        assert (store, path, hashes) == ("the store file:///store", "job/chk-7/manifest.json", True)
        if isinstance(self.result, Exception):
            raise self.result
        self.goes_on.clear()
        for step_s in self.steps_s:
            self.clock_s += step_s
            self.goes_on.append(goes_on(self.result))
        return self.result

    def _look_at_sources(self, store: str, manifest: Any, reported: Any, result: Verification) -> str | None:
        assert (store, manifest, result) == ("the store file:///store", MANIFEST, self.result)
        self.asked.append(reported)
        return self.unchecked

    def _note(self, _: Any, job_id: str, checkpoint_id: int, verification: dict[str, Any]) -> None:
        assert (job_id, checkpoint_id) == ("job", 7)
        self.noted.append(verification)

    def run(self) -> dict[str, Any]:
        """Returns what is stored at the end, beside what was stored at the beginning."""
        self.verifier._run(JOB, FOUND, BEGUN)
        *_, last = self.noted
        assert last.items() >= (BEGUN | {"status": last["status"], "beat_at_ms": last["beat_at_ms"]}).items()
        return {name: value for name, value in last.items() if name not in BEGUN or name == "status"}


class Sessions:
    """The database, whose transactions do nothing."""

    def __call__(self) -> Any:
        return nullcontext(None)

    begin = __call__


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> Verified:
    return Verified(monkeypatch)


def test_a_snapshot_without_a_problem_can_be_restored(verified: Verified) -> None:
    assert verified.run() == {
        "status": CommandStatus.COMPLETED,
        "files": 3,
        "files_checked": 2,
        "bytes_read": 100,
        "problem_count": 0,
        "problems": [],
        "restorable": True,
        "sources_checked": True,
        "sources_unchecked": None,
        "ended_at_ms": NOW_MS,
    }
    [event] = verified.events
    assert (event["job_id"], event["kind"], event["at_ms"]) == ("job", "CHECKPOINT_VERIFIED", NOW_MS)
    assert event["message"] == "checkpoint 7 was verified: it can be restored"
    assert (event["checkpoint_id"], event["problems"]) == (7, 0)


@pytest.mark.parametrize(
    ("facts", "problems", "unchecked"),
    [
        ({"claimant": "job"}, [], None),
        ({"claimant": "other"}, ["another job has claimed it"], None),
        ({"no_start": "its hash"}, ["its hash"], None),
        ({"unchecked": "the job does not run"}, [], "the job does not run"),
        ({"claimant": "other", "no_start": "its hash"}, ["another job has claimed it", "its hash"], None),
        ({"result": Verification(3, manifest=MANIFEST, problems=["a"], problem_count=1)}, ["a"], DAMAGED),
        ({"result": Verification(problems=["gone"], problem_count=1)}, ["gone"], DAMAGED),
    ],
)
def test_each_problem_keeps_a_snapshot_from_being_restored(
    verified: Verified, facts: dict[str, Any], problems: list[str], unchecked: str | None
) -> None:
    for name, value in facts.items():
        setattr(verified, name, value)
    ended = verified.run()
    assert (ended["problems"], ended["problem_count"], ended["restorable"]) == (problems, len(problems), not problems)
    assert (ended["sources_unchecked"], ended["sources_checked"]) == (unchecked, unchecked is None)
    assert [event["problems"] for event in verified.events] == [len(problems)]
    assert ("cannot" in verified.events[0]["message"]) == bool(problems)


@pytest.mark.parametrize(
    ("error", "problem"),
    [(StoreUnavailableError("away"), "STATE_STORE_UNAVAILABLE: away"), (PermissionError("no"), "PermissionError: no")],
)
def test_a_verification_that_cannot_be_done_has_failed_and_says_nothing_of_the_snapshot(
    verified: Verified, error: Exception, problem: str
) -> None:
    verified.result = error
    failed = {"status": CommandStatus.FAILED, "problems": [problem], "problem_count": 1, "ended_at_ms": NOW_MS}
    assert (verified.run(), verified.events) == (failed, [])


def test_a_verification_shows_its_progress_now_and_then_and_ends_with_its_control_plane(verified: Verified) -> None:
    verified.steps_s = [BEAT_S - 0.5, 0.5, BEAT_S - 0.5]
    verified.run()
    assert (verified.goes_on, len(verified.noted)) == ([True] * 3, 2)
    beat = verified.noted[0]
    assert (beat["status"], beat["beat_at_ms"], beat["files_checked"]) == (CommandStatus.IN_PROGRESS, NOW_MS + 1, 2)
    verified.noted.clear()
    verified.verifier._closing.set()
    verified.verifier._run(JOB, FOUND, BEGUN)
    assert (verified.goes_on[0], [each["status"] for each in verified.noted]) == (False, [CommandStatus.IN_PROGRESS])


def test_a_few_snapshots_are_verified_at_once_and_each_end_makes_room_for_the_next(verified: Verified) -> None:
    running: list[Future[None]] = []

    def submit(run: Any, *of: Any) -> Future[None]:
        assert (run, of) == (verified.verifier._run, (JOB, FOUND, BEGUN))
        running.append(Future())
        return running[-1]

    threads: Any = SimpleNamespace(submit=submit)
    verified.verifier._threads = threads
    for _ in range(AT_ONCE):
        verified.verifier.submit(JOB, FOUND, BEGUN)
    for ended in (lambda: running[0].set_result(None), lambda: running[1].set_exception(ValueError("a defect"))):
        with pytest.raises(TooManyInFlightError):
            verified.verifier.submit(JOB, FOUND, BEGUN)
        ended()
        verified.verifier.submit(JOB, FOUND, BEGUN)
    assert len(running) == AT_ONCE + 2


@pytest.mark.parametrize(
    ("columns", "is_known"),
    [
        ({}, True),
        ({"heartbeat_at_ms": NOW_MS - 14_999}, False),
        ({"driver_state": "RESTORING"}, False),
        ({"metrics": None}, False),
    ],
)
def test_only_the_report_of_a_driver_that_runs_the_job_says_what_its_sources_have(
    verified: Verified, columns: dict[str, Any], is_known: bool
) -> None:
    report = {"stage": AttemptStage.ACTIVE, "driver_state": "RUNNING", "metrics": {"sources": []}}
    verified.attempt = Attempt(**{**report, "heartbeat_at_ms": NOW_MS, **columns})
    verified.run()
    assert verified.asked[0] == ([] if is_known else None)
